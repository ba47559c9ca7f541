#include "cli/history_view.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "daemon/command_line/size_option.h"
#include "daemon/command_line/table.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr double kNsPerSecond = 1e9;
constexpr size_t kShownDigits = 8;                // digits of an ID: enough for `ppmr timeline`
constexpr const char* kWouldMove = "would move";  // the result of a rehearsal

// Escapes a text. The names of processes and peers can contain any bytes, even bytes that control a
// terminal.
std::string escaped(const std::string& text) {
  const std::string quoted =
      json(text).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  std::string plain;
  for (const char c : quoted.substr(1, quoted.size() - 2)) {
    if (c == 0x7f) {
      plain += "\\u007f";
    } else {
      plain += c;
    }
  }
  return plain;
}

// Returns the name in an identity: "tls-psk NAME" -> "NAME", see PeerIdentity::owner().
std::string name_of_peer(const std::string& peer) {
  for (const std::string_view method : {"tls-psk ", "tls-cert ", "none (insecure) "}) {
    if (peer.starts_with(method)) return escaped(peer.substr(method.size()));
  }
  return escaped(peer.empty() ? "?" : peer);
}

// Returns the target's name. It is known only after the target has accepted the migration.
std::string target_of(const OwnershipRecord& record) {
  if (!record.peer.empty()) return name_of_peer(record.peer);
  const auto address = record.endpoint.find("target");
  return address != record.endpoint.end() && address->is_string() ? escaped(*address) : "?";
}

int64_t reached_ns(const OwnershipRecord& record, MigrationState state) {
  for (const StateChange& change : record.history()) {
    if (change.state == state) return change.at_ns;
  }
  return 0;
}

// Returns the time from the freeze until the process runs again, here or at the target. For a copy
// it is unknown: the original runs on after a freeze, and no record has the end of that freeze.
double downtime_of(const OwnershipRecord& record) {
  double longest = -1;
  if (record.plan.original_goes_on) return longest;
  const int64_t aborted_ns = reached_ns(record, MigrationState::kAborted);
  for (const TreeRecord& tree : record.trees) {
    const int64_t stayed_ns = tree.goes_on_ns != 0 ? tree.goes_on_ns : aborted_ns;
    const int64_t end_ns = record.state() == MigrationState::kAborted ? stayed_ns : tree.running_ns;
    if (tree.freeze_began_ns == 0 || end_ns < tree.freeze_began_ns) continue;
    longest = std::max(longest, static_cast<double>(end_ns - tree.freeze_began_ns) / kNsPerSecond);
  }
  return longest;
}

std::string result_of(const OwnershipRecord& record) {
  if (record.has_losses()) return "LOST";
  if (record.state() == MigrationState::kAborted && record.plan.is_rehearsal) {
    return record.error.empty() ? kWouldMove : "would stay";
  }
  if (record.state() == MigrationState::kAborted) return "stayed";
  if (!record.first_error().empty()) return "FAILED";
  if (record.state() != MigrationState::kFinished) return "OPEN";
  const bool is_copy = !record.trees.empty() && is_copy_name(record.trees[0].protected_as);
  return record.plan.original_goes_on || is_copy ? "copied" : "moved";
}

std::string processes_of(const OwnershipRecord& record) {
  if (record.trees.empty()) return "-";
  const TreeRecord& first = record.trees.front();
  const std::string text = fmt::format("{} {}", first.root, escaped(first.name));
  if (record.trees.size() == 1) return text;
  return fmt::format("{} and {} more", text, record.trees.size() - 1);
}

template <typename Value>
Value value_of(const json& object, const char* key, Value otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  const bool fits = std::is_same_v<Value, std::string> ? found->is_string() : found->is_number();
  return fits ? found->get<Value>() : otherwise;
}

const json& array_of(const json& object, const char* key) {
  static const json kNone = json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kNone;
}

std::string local_time(int64_t at_ns) {
  const time_t seconds = at_ns / 1'000'000'000;
  tm parts{};
  std::array<char, 32> text{};
  if (::localtime_r(&seconds, &parts) == nullptr) return "?";
  return {text.data(), ::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts)};
}

}  // namespace

PastMigration describe_migration(const OwnershipRecord& record, const std::string& node) {
  const bool here = record.role == MigrationRole::kSource;
  return {.id = record.id,
          .began_ns = record.history().front().at_ns,
          .from = here ? escaped(node) : name_of_peer(record.peer),
          .to = here ? target_of(record) : escaped(node),
          .processes = processes_of(record),
          .downtime_s = downtime_of(record),
          .result = result_of(record),
          .error = escaped(record.first_error())};
}

bool has_failed(const PastMigration& migration) {
  return migration.result != "moved" && migration.result != "copied" &&
         migration.result != kWouldMove;
}

std::string history_text(const std::vector<PastMigration>& migrations, size_t columns) {
  Table table({{.title = "ID", .is_whole = true},
               {.title = "BEGAN", .is_whole = true},
               {"FROM"},
               {"TO"},
               {"PROCESSES"},
               {"DOWNTIME", true},
               {"RESULT"}});
  for (const PastMigration& past : migrations) {
    table.add({past.id.substr(0, kShownDigits), local_time(past.began_ns), past.from, past.to,
               past.processes, format_seconds(past.downtime_s),
               past.error.empty() ? past.result : past.result + ": " + past.error});
  }
  return table.text(columns);
}

json history_json(const OwnershipRecord& record, const PastMigration& past) {
  auto trees = json::array();
  for (const TreeRecord& tree : record.trees) {
    trees.push_back({{"pid", tree.root},
                     {"name", tree.name},
                     {"container", tree.container.name},
                     {"freeze_began_ns", tree.freeze_began_ns},
                     {"running_ns", tree.running_ns},
                     {"complete_ns", tree.complete_ns}});
  }
  return {{"migration", past.id},
          {"role", to_string(record.role)},
          {"began_ns", past.began_ns},
          {"from", past.from},
          {"to", past.to},
          {"downtime_s", past.downtime_s},
          {"result", past.result},
          {"state", to_string(record.state())},
          {"error", record.first_error()},
          {"trees", trees}};
}

std::optional<ProtectedProcess> describe_protected(const EpochState& kept,
                                                   std::optional<MigrationState> takeover,
                                                   const std::string& node, int64_t now_ns) {
  if (judge_source(takeover) == SourceMay::kNotRun) return std::nullopt;
  const SealedEpoch& newest = kept.newest;
  return ProtectedProcess{.role = MigrationRole::kTarget,
                          .name = kept.name,
                          .is_copy = kept.is_copy,
                          .from = name_of_peer(kept.peer),
                          .to = escaped(node),
                          .pid = kept.tree.root,
                          .program = escaped(kept.tree.program),
                          .epoch = newest.number,
                          .age_ms = newest.number == 0 ? 0 : age_of(newest, now_ns).count(),
                          .pause_ms = newest.pause_ms,
                          .bytes = newest.bytes,
                          .sent_bytes = newest.arrived_bytes};
}

std::vector<ProtectedProcess> protected_through(const json& status, const std::string& node) {
  const json& peers = array_of(status, "peers");
  const std::string partner =
      peers.empty() ? "?" : escaped(value_of(peers.front(), "name", std::string("?")));
  std::vector<ProtectedProcess> processes;
  for (const json& process : array_of(status, "protected")) {
    processes.push_back({.role = MigrationRole::kSource,
                         .name = escaped(value_of(process, "name", std::string())),
                         .from = escaped(node),
                         .to = partner,
                         .pid = value_of(process, "pid", pid_t{0}),
                         .program = escaped(value_of(process, "program", std::string())),
                         .epoch = value_of(process, "epoch", uint64_t{0}),
                         .age_ms = value_of(process, "age_ms", int64_t{0}),
                         .pause_ms = value_of(process, "pause_ms", int64_t{0}),
                         .bytes = value_of(process, "bytes", uint64_t{0}),
                         .sent_bytes = value_of(process, "sent_bytes", uint64_t{0})});
  }
  return processes;
}

std::string protected_text(const std::vector<ProtectedProcess>& processes, size_t columns) {
  Table table({{.title = "PROTECTED"},
               {"FROM"},
               {"TO"},
               {"PROCESSES"},
               {"EPOCH", true},
               {"AGE", true},
               {"PAUSE", true},
               {"BYTES", true},
               {"SENT", true}});
  for (const ProtectedProcess& process : processes) {
    const std::string tree = fmt::format("{} {}", process.pid, process.program);
    const std::string name = process.name + (process.is_copy ? " (copy)" : "");
    if (process.epoch == 0) {
      table.add({name, process.from, process.to, tree, "none", "-", "-", "-", "-"});
      continue;
    }
    table.add({name, process.from, process.to, tree, std::to_string(process.epoch),
               format_time(std::chrono::milliseconds(process.age_ms)),
               fmt::format("{} ms", process.pause_ms), format_size(process.bytes),
               format_size(process.sent_bytes)});
  }
  return table.text(columns);
}

json protected_json(const ProtectedProcess& process) {
  return {{"protected", process.name},
          {"copy", process.is_copy},
          {"role", to_string(process.role)},
          {"from", process.from},
          {"to", process.to},
          {"pid", process.pid},
          {"program", process.program},
          {"epoch", process.epoch},
          {"age_ms", process.age_ms},
          {"pause_ms", process.pause_ms},
          {"bytes", process.bytes},
          {"sent_bytes", process.sent_bytes}};
}

}  // namespace ppmr
