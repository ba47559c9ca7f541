#include "cli/status_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/version.h"
#include "cli/screen/counted.h"
#include "daemon/background/program_file.h"
#include "daemon/command_line/size_option.h"
#include "daemon/command_line/table.h"

namespace ppmr {
namespace {

using nlohmann::json;

uint64_t number(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<uint64_t>() : 0;
}

std::string text(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

bool truth(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

const json& objects(const json& status, const char* key) {
  static const json kNone = json::array();
  const auto it = status.find(key);
  return it != status.end() && it->is_array() ? *it : kNone;
}

std::string age(const json& object) {
  return format_time(std::chrono::milliseconds(number(object, "age_ms")));
}

std::string rate(const json& object) {
  return object.contains("rate_bytes_per_s")
             ? format_size(number(object, "rate_bytes_per_s")) + "/s"
             : "-";
}

std::string line(const char* label, const std::string& what) {
  return fmt::format("  {:<9}{}\n", label, what);
}

std::string pool_line(const json& pool) {
  return line("pool",
              fmt::format("{} of {} of {} in use (maximum {}); {} for a free slot, {} in total",
                          number(pool, "in_use"), counted(number(pool, "slots"), "slot"),
                          format_size(number(pool, "chunk_size_bytes")), number(pool, "in_use_max"),
                          counted(number(pool, "waits"), "wait"),
                          format_time(std::chrono::microseconds(number(pool, "wait_time_us")))));
}

std::string store_line(const json& store) {
  const uint64_t limit = number(store, "limit_bytes");
  return line("store", fmt::format("{}{} used, {} ready, {} spilled",
                                   format_size(number(store, "used_bytes")),
                                   limit > 0 ? " of " + format_size(limit) : "",
                                   format_size(number(store, "ready_bytes")),
                                   format_size(number(store, "spilled_bytes"))));
}

// Returns the lines about the checkpoints that a target with --keep-dir has on its disk.
std::string kept_lines(const json& keep) {
  const uint64_t count = number(keep, "checkpoints");
  std::string what = fmt::format("{}, {} in {}", counted(count, "checkpoint"),
                                 format_size(number(keep, "bytes")), text(keep, "directory"));
  if (count > 0) {
    what += fmt::format(", the newest sealed {} ago",
                        format_time(std::chrono::milliseconds(number(keep, "newest_age_ms"))));
  }
  if (const std::string name = text(keep, "writing"); !name.empty()) {
    what +=
        fmt::format("; writing {}, {} so far", name, format_size(number(keep, "written_bytes")));
  }
  if (const std::string error = text(keep, "error"); !error.empty()) what += "; FAILED: " + error;
  std::string lines = line("kept", what);
  for (const json& file : objects(keep, "unreadable")) {
    const std::string name = text(file, "name");
    lines +=
        line("UNUSABLE", fmt::format("{}{}: {}", text(file, "file"),
                                     name.empty() ? "" : " (" + name + ")", text(file, "reason")));
  }
  return lines;
}

std::string state_text(const json& checkpoint) {
  const std::string state = text(checkpoint, "state");
  const std::string kept = text(checkpoint, "kept");
  if (state != "sealed" || kept.empty()) return state;
  if (kept == "kept") return "kept";
  return kept == "writing" ? "sealed, being written" : "sealed, not kept";
}

// Returns the line about open migrations; empty: there are none.
std::string open_line(const json& open) {
  const auto count = number(open, "count");
  if (count == 0) return "";
  std::string migrations;
  for (const json& migration : objects(open, "migrations")) {
    if (!migration.is_object()) continue;
    const auto since = std::chrono::nanoseconds(realtime_ns()) -
                       std::chrono::nanoseconds(number(migration, "since_ns"));
    migrations += fmt::format(
        "{}{} {} for {}", migrations.empty() ? "" : ", ", text(migration, "id").substr(0, 8),
        text(migration, "state"),
        format_time(std::chrono::duration_cast<std::chrono::seconds>(std::max(since, {}))));
  }
  return line("open", fmt::format("{}: {}", counted(count, "migration"), migrations));
}

std::string protected_line(const json& process) {
  return line("protects",
              fmt::format("{} ({}, pid {}): epoch {}, {} old, pause {} ms, {}, {} sent{}",
                          text(process, "name"), text(process, "program"), number(process, "pid"),
                          number(process, "epoch"),
                          format_time(std::chrono::milliseconds(number(process, "age_ms"))),
                          number(process, "pause_ms"), format_size(number(process, "bytes")),
                          format_size(number(process, "sent_bytes")), on_disk_text(process)));
}

// Describes the rights of a daemon that drops rights after the set-up.
std::string confinement_line(const json& confinement) {
  const std::string user = text(confinement, "user");
  const std::string capabilities = text(confinement, "capabilities");
  const uint64_t landlock = number(confinement, "landlock");
  return line("runs",
              fmt::format("as user {}, capabilities: {}, no_new_privs {}, seccomp {}, "
                          "landlock {}",
                          user.empty() ? std::to_string(number(confinement, "uid")) : user,
                          capabilities, truth(confinement, "no_new_privs") ? "on" : "OFF",
                          truth(confinement, "seccomp") ? "on" : "OFF",
                          landlock > 0 ? fmt::format("on (version {})", landlock)
                                       : "OFF (" + text(confinement, "landlock_why") + ")"));
}

// Returns how much the data of a peer was compressed; empty if it was not.
std::string compression_text(const json& peer) {
  const std::string method = text(peer, "compression");
  const uint64_t bytes = number(peer, "bytes");
  const uint64_t wire_bytes = number(peer, "wire_bytes");
  const bool compressed = wire_bytes > 0 && wire_bytes < bytes;
  if (!compressed && (method.empty() || method == "off")) return "";
  std::string result = ", compression:" + (method.empty() ? "" : " " + method);
  if (wire_bytes > 0) {
    result +=
        fmt::format(" {:.2f} to 1", static_cast<double>(bytes) / static_cast<double>(wire_bytes));
  }
  return result;
}

std::string peer_line(const json& peer) {
  std::string who = text(peer, "name");
  if (const std::string address = text(peer, "address"); !address.empty() && address != who) {
    who += (who.empty() ? "" : " at ") + address;
  }
  const std::string error = text(peer, "error");
  const std::string security = text(peer, "security");
  const std::string encryption = text(peer, "encryption");
  const std::string encryption_why = text(peer, "encryption_why");
  const std::string transport = text(peer, "transport");
  return line(
      "peer",
      fmt::format(
          "{}, {}{}{}{}{}, last message {} ago, {} in {}{}", who.empty() ? "unknown" : who,
          truth(peer, "connected") ? "connected" : "NOT CONNECTED",
          transport.empty() ? "" : " over " + transport,
          security.empty() ? "" : ", security: " + security,
          encryption.empty() ? ""
                             : ", encryption: " + encryption +
                                   (encryption_why.empty() ? "" : " (" + encryption_why + ")"),
          compression_text(peer),
          format_time(std::chrono::milliseconds(number(peer, "silence_ms"))),
          format_size(number(peer, "bytes")), age(peer), error.empty() ? "" : ": " + error));
}

std::string rdma_line(const json& rdma) {
  std::string what =
      fmt::format("{} registered in {} on {}", format_size(number(rdma, "registered_bytes")),
                  counted(number(rdma, "registered_regions"), "region"),
                  counted(number(rdma, "rails"), "rail"));
  if (rdma.contains("reads_posted")) {
    what += fmt::format(
        "; {}, {} in {}, {} completed by event", counted(number(rdma, "connections"), "connection"),
        format_size(number(rdma, "bytes_read")), counted(number(rdma, "reads_posted"), "read"),
        number(rdma, "completions_by_event"));
  }
  return line("rdma", what);
}

}  // namespace

void add_rates(json& status, const json& earlier, std::chrono::nanoseconds between) {
  const double seconds = std::chrono::duration<double>(between).count();
  if (seconds <= 0) return;
  const auto rate_of = [&](uint64_t now, uint64_t then) {
    return static_cast<uint64_t>(now > then ? static_cast<double>(now - then) / seconds : 0);
  };
  status["rate_bytes_per_s"] = rate_of(number(status, "bytes"), number(earlier, "bytes"));
  const auto checkpoints = status.find("checkpoints");
  if (checkpoints == status.end() || !checkpoints->is_array()) return;
  for (json& checkpoint : *checkpoints) {
    if (!checkpoint.is_object()) continue;
    uint64_t then = 0;
    for (const json& other : objects(earlier, "checkpoints")) {
      if (text(other, "name") == text(checkpoint, "name")) then = number(other, "bytes");
    }
    checkpoint["rate_bytes_per_s"] = rate_of(number(checkpoint, "bytes"), then);
  }
}

std::string on_disk_text(const json& process) {
  const auto on_disk = process.find("on_disk");
  if (on_disk == process.end()) return "";
  const uint64_t epoch = number(*on_disk, "epoch");
  const std::string age =
      on_disk->contains("age_ms")
          ? ", " + format_time(std::chrono::milliseconds(number(*on_disk, "age_ms"))) + " old"
          : "";
  const std::string error = text(*on_disk, "error");
  return fmt::format("; on the partner's disk: {}{}",
                     epoch == 0 ? "none yet" : fmt::format("epoch {}{}", epoch, age),
                     error.empty() ? "" : " (" + error + ")");
}

std::string status_text(const json& status, const MountEntry& mount, size_t columns) {
  std::string page = fmt::format("{}: {}, pid {}, for {}\n", mount.mountpoint, text(status, "role"),
                                 number(status, "pid"), age(status));
  if (const std::string old = describe_old_program(status, kVersion); !old.empty()) {
    page += line("OLD", fmt::format("it {}: drain it, then restart it", old));
  }
  page += line("data", fmt::format("{} verified, {}; {}, {}", format_size(number(status, "bytes")),
                                   rate(status), counted(number(status, "stalls"), "stall"),
                                   counted(number(status, "parked_readers"), "parked reader")));
  if (const auto pool = status.find("pool"); pool != status.end() && pool->is_object())
    page += pool_line(*pool);
  if (const auto store = status.find("store"); store != status.end() && store->is_object())
    page += store_line(*store);
  if (const auto keep = status.find("keep"); keep != status.end() && keep->is_object())
    page += kept_lines(*keep);
  if (const auto rdma = status.find("rdma"); rdma != status.end() && rdma->is_object())
    page += rdma_line(*rdma);
  if (const auto own = status.find("confinement"); own != status.end() && own->is_object())
    page += confinement_line(*own);
  if (const auto open = status.find("open_migrations"); open != status.end() && open->is_object())
    page += open_line(*open);
  for (const json& process : objects(status, "protected")) page += protected_line(process);
  for (const json& peer : objects(status, "peers")) page += peer_line(peer);
  if (objects(status, "peers").empty()) page += line("peer", "none");

  const json& checkpoints = objects(status, "checkpoints");
  if (checkpoints.empty()) return page + "  no checkpoints\n";
  Table table({{"CHECKPOINT"},
               {"STATE"},
               {"FILES", true},
               {"BYTES", true},
               {"RATE", true},
               {"AGE", true},
               {"PEER"}},
              /*indent=*/2);
  for (const json& checkpoint : checkpoints) {
    std::string note = text(checkpoint, "peer");
    for (const char* key : {"error", "keep_error"}) {
      if (const std::string error = text(checkpoint, key); !error.empty()) note += ": " + error;
    }
    table.add({text(checkpoint, "name"), state_text(checkpoint),
               std::to_string(number(checkpoint, "files")),
               format_size(number(checkpoint, "bytes")), rate(checkpoint), age(checkpoint), note});
  }
  return page + table.text(columns);
}

std::string no_reply_text(const MountEntry& mount, const CommandError& error) {
  return fmt::format("{}: NO REPLY: {}\n", mount.mountpoint, error.message);
}

std::string no_reply_json(const MountEntry& mount, const CommandError& error) {
  const json object = {{"ok", false},
                       {"mountpoint", mount.mountpoint},
                       {"exit_code", to_int(error.exit_code)},
                       {"error", error.message}};
  return json_text(object) + "\n";
}

}  // namespace ppmr
