#include "cli/watch_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/number_file.h"
#include "cli/phase_words.h"
#include "cli/screen/counted.h"
#include "cli/screen/rates.h"
#include "daemon/command_line/size_option.h"
#include "migration/source/changed_limits.h"
#include "migration/source/pause.h"
#include "restart_loader/pager/pager.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr size_t kGaugeColumns = 22;
constexpr size_t kMigrationGaugeColumns = 12;
constexpr size_t kSparkColumns = 40;
constexpr size_t kLabelColumns = 14;
constexpr size_t kCheckpointsShown = 8;  // per mount; the latest ones

// Treats a field of an unexpected type as missing: the daemon may have another version.
uint64_t number(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<uint64_t>() : 0;
}

bool truth(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

const json& part(const json& object, const char* key) {
  static const json kNone = json::object();
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : kNone;
}

std::vector<json> objects(const json& status, const char* key) {
  std::vector<json> found;
  const auto it = status.find(key);
  if (it == status.end() || !it->is_array()) return found;
  for (const json& object : *it) {
    if (object.is_object()) found.push_back(object);
  }
  return found;
}

class View {
 public:
  View(const WatchPage& page, size_t columns, Charset charset)
      : page_(page), columns_(columns), charset_(charset) {}
  std::vector<ScreenLine> draw();
  std::vector<ScreenLine> draw_migrations();

 private:
  std::string text(const json& object, const char* key) const {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? printable(it->get<std::string>(), charset_) : "";
  }
  void title();
  void migrations();
  void migration(const OwnershipRecord& record, size_t number);
  void mount(const WatchedMount& mount);
  void rates(const WatchedMount& mount);
  void pool(const json& status);
  void store(const json& status);
  void peer(const json& peer);
  void checkpoints(const json& status);
  void labelled(const char* label, const std::string& what, Tone tone = Tone::kPlain);
  // On a narrow terminal the numbers are more useful than the gauge.
  std::string gauge_of(uint64_t part, uint64_t whole) const {
    return columns_ < 70 ? "" : gauge(part, whole, kGaugeColumns) + " ";
  }

  const WatchPage& page_;
  const size_t columns_;
  const Charset charset_;
  std::vector<ScreenLine> lines_;
};

void View::labelled(const char* label, const std::string& what, Tone tone) {
  lines_.push_back({{fmt::format("  {:<{}}", label, kLabelColumns - 2)}, {what, tone}});
}

void View::title() {
  const std::string left = "ppmr on " + printable(page_.node, charset_);
  const std::string right = page_.time + "  q quits";
  const size_t used = columns_of(left) + columns_of(right);
  const std::string gap(columns_ > used + 1 ? columns_ - used : 2, ' ');
  lines_.push_back({{left, Tone::kTitle}, {gap}, {right, Tone::kFaint}});
}

void View::migrations() {
  if (page_.migrations.empty() && page_.no_records.empty()) return;
  lines_.push_back({});
  lines_.push_back({{"migrations", Tone::kTitle}});
  if (!page_.no_records.empty()) {
    lines_.push_back({{"  " + printable(page_.no_records, charset_), Tone::kFaint}});
  }
  draw_migrations();
}

std::vector<ScreenLine> View::draw_migrations() {
  for (const OwnershipRecord& record : page_.migrations) {
    for (size_t i = 0; i < record.trees.size(); ++i) migration(record, i);
  }
  return lines_;
}

void View::migration(const OwnershipRecord& record, size_t number) {
  const TreeRecord& tree = record.trees[number];
  const MigrationNotes& notes = page_.notes_of(record);
  const TreeBytes moved = bytes_of(page_, record, tree);
  const TreePart part = part_of(record, number, notes, moved);
  const bool is_source = record.role == MigrationRole::kSource;
  const std::string word = phase_of(record, tree, notes);
  const std::string phase = phase::shown(word, part.round);
  const Tone tone = word == phase::kMoved                      ? Tone::kGood
                    : word == "LOST" || word == phase::kStayed ? Tone::kBad
                                                               : Tone::kPlain;
  const uint64_t bytes = moved.bytes;
  const uint64_t rate = word == phase::kPaused ? 0 : moved.rate_bytes_per_s;
  ScreenLine line = {{fmt::format("  {}  {:>7} {} ", record.id.substr(0, 8), tree.root,
                                  fitted(printable(tree.name, charset_), 13, charset_))},
                     {fitted(phase, 12, charset_) + " ", tone}};
  std::string rest;
  const bool is_open = !is_over(record.state());
  if (part.expected_bytes > 0) {
    if (columns_ >= 100)
      rest += gauge(part.bytes, part.expected_bytes, kMigrationGaugeColumns) + " ";
    rest += fmt::format("{:>4}", percentage(part.bytes, part.expected_bytes));
  }
  if (is_open && rate > 0) rest += fmt::format("  {}/s", format_size(rate));
  const double left = seconds_left(part.bytes, part.expected_bytes, static_cast<double>(rate));
  if (is_open && left >= 0) {
    rest +=
        "  " + format_time(std::chrono::milliseconds(static_cast<int64_t>(left * 1000))) + " left";
  }
  if (part.expected_bytes > 0) {
    rest += fmt::format("  {} of {}", format_size(part.bytes), format_size(part.expected_bytes));
  } else if (bytes > 0) {
    rest += "  " + format_size(bytes);
  }
  if (!record.plan.original_goes_on && tree.freeze_began_ns > 0 &&
      tree.running_ns > tree.freeze_began_ns) {
    rest += "  downtime " +
            format_time(std::chrono::microseconds((tree.running_ns - tree.freeze_began_ns) / 1000));
  }
  rest += std::string(is_source ? "  to " : "  from ") + printable(record.peer, charset_);
  if (is_open && notes.max_downtime.count() > 0 && columns_ >= 100) {
    rest += ", promised " + format_time(notes.max_downtime);
  }
  if (const std::string& why = record.first_error(); !why.empty()) {
    rest += ": " + printable(why, charset_);
  }
  line.push_back({rest});
  lines_.push_back(std::move(line));
}

void View::mount(const WatchedMount& mount) {
  lines_.push_back({});
  const std::string where = printable(mount.mount.mountpoint, charset_);
  if (!mount.status) {
    lines_.push_back(
        {{where, Tone::kTitle},
         {"  NO REPLY: " + printable(mount.status.error().message, charset_), Tone::kBad}});
    return;
  }
  const json& status = *mount.status;
  ScreenLine head = {
      {where, Tone::kTitle},
      {fmt::format("  {}, pid {}, for {}", text(status, "role"), number(status, "pid"),
                   format_time(std::chrono::milliseconds(number(status, "age_ms"))))}};
  if (truth(status, "draining")) head.push_back({", draining", Tone::kBad});
  lines_.push_back(std::move(head));
  const auto peers = objects(status, "peers");
  for (const json& each : peers) peer(each);
  if (peers.empty()) labelled("peer", "none", Tone::kFaint);
  rates(mount);
  pool(status);
  store(status);
  checkpoints(status);
}

void View::rates(const WatchedMount& mount) {
  const std::string rate = mount.rates.empty() ? "-" : format_size(mount.rates.back()) + "/s";
  const std::string what =
      fmt::format("{}, {} so far, {}  ", rate, format_size(number(*mount.status, "bytes")),
                  counted(number(*mount.status, "stalls"), "stall"));
  const size_t used = kLabelColumns + columns_of(what);
  const size_t room = columns_ > used ? columns_ - used : 0;
  const size_t shown = std::min({room, kSparkColumns, mount.rates.size()});
  labelled("rate", what + sparkline(mount.rates, shown, charset_));
}

void View::pool(const json& status) {
  const json& pool = part(status, "pool");
  if (pool.empty()) return;
  const uint64_t in_use = number(pool, "in_use");
  const uint64_t slots = number(pool, "slots");
  labelled("pool",
           fmt::format("{}{} of {} slots of {} in use, at most {}; waited {}",
                       gauge_of(in_use, slots), in_use, slots,
                       format_size(number(pool, "chunk_size_bytes")), number(pool, "in_use_max"),
                       format_time(std::chrono::microseconds(number(pool, "wait_time_us")))));
}

void View::store(const json& status) {
  const json& store = part(status, "store");
  if (store.empty()) return;
  const uint64_t used = number(store, "used_bytes");
  const uint64_t limit = number(store, "limit_bytes");
  std::string what = gauge_of(used, limit) + format_size(used);
  if (limit > 0) what += " of " + format_size(limit);
  what += fmt::format(" used, {} ready, {} spilled", format_size(number(store, "ready_bytes")),
                      format_size(number(store, "spilled_bytes")));
  labelled("image store", what);
}

void View::peer(const json& peer) {
  std::string who = text(peer, "name");
  if (const std::string address = text(peer, "address"); !address.empty() && address != who) {
    who += (who.empty() ? "" : " at ") + address;
  }
  const bool connected = truth(peer, "connected");
  ScreenLine line = {
      {fmt::format("  {:<{}}", "peer", kLabelColumns - 2)},
      {(who.empty() ? "unknown" : who) + ", "},
      {connected ? "connected" : "NOT CONNECTED", connected ? Tone::kGood : Tone::kBad}};
  std::string rest;
  if (const auto transport = text(peer, "transport"); !transport.empty()) {
    rest += " over " + transport;
  }
  if (const auto encryption = text(peer, "encryption"); !encryption.empty()) {
    rest += ", encryption " + encryption;
  }
  if (const auto compression = text(peer, "compression");
      !compression.empty() && compression != "off") {
    rest += ", compression " + compression;
  }
  rest += fmt::format(", last message {} ago",
                      format_time(std::chrono::milliseconds(number(peer, "silence_ms"))));
  line.push_back({rest});
  if (const std::string error = text(peer, "error"); !error.empty()) {
    line.push_back({": " + error, Tone::kBad});
  }
  lines_.push_back(std::move(line));
}

void View::checkpoints(const json& status) {
  const auto all = objects(status, "checkpoints");
  if (all.empty()) return;
  std::map<std::string, size_t> count_of;
  for (const json& checkpoint : all) ++count_of[text(checkpoint, "state")];
  std::string what;
  for (const auto& [state, count] : count_of) {
    what += fmt::format("{}{} {}", what.empty() ? "" : ", ", count, state);
  }
  labelled("checkpoints", what);
  std::vector<const json*> latest;
  for (const json& checkpoint : all) latest.push_back(&checkpoint);
  std::stable_sort(latest.begin(), latest.end(), [](const json* left, const json* right) {
    return number(*left, "age_ms") < number(*right, "age_ms");
  });
  if (latest.size() > kCheckpointsShown) latest.resize(kCheckpointsShown);
  for (const json* checkpoint : latest) {
    const std::string state = text(*checkpoint, "state");
    const uint64_t rate = number(*checkpoint, "rate_bytes_per_s");
    ScreenLine line = {
        {std::string(kLabelColumns, ' ') +
         fitted(text(*checkpoint, "name"), std::clamp<size_t>(columns_ / 3, 12, 34), charset_) +
         " "},
        {fmt::format("{:<9}", state), state == "failed" ? Tone::kBad : Tone::kPlain},
        {fmt::format("{:>10}{}  {}", format_size(number(*checkpoint, "bytes")),
                     rate > 0 ? "  " + format_size(rate) + "/s" : "",
                     counted(number(*checkpoint, "files"), "file"))}};
    if (const std::string error = text(*checkpoint, "error"); !error.empty()) {
      line.push_back({": " + error, Tone::kBad});
    }
    lines_.push_back(std::move(line));
  }
  if (all.size() > latest.size()) {
    lines_.push_back({{fmt::format("{}and {} older ones", std::string(kLabelColumns, ' '),
                                   all.size() - latest.size()),
                       Tone::kFaint}});
  }
}

std::vector<ScreenLine> View::draw() {
  title();
  migrations();
  for (const WatchedMount& each : page_.mounts) mount(each);
  if (page_.mounts.empty()) {
    lines_.push_back({});
    lines_.push_back({{"no ppmr mounts"}});
  }
  return std::move(lines_);
}

}  // namespace

const MigrationNotes& WatchPage::notes_of(const OwnershipRecord& record) const {
  static const MigrationNotes kNone;
  const auto found = notes.find(RecordStore::name_of(record.id, record.role));
  return found == notes.end() ? kNone : found->second;
}

namespace {

bool has_missing_memory(const MigrationNotes& notes) {
  return std::any_of(notes.trees.begin(), notes.trees.end(),
                     [](const TreeNotes& tree) { return tree.missing_bytes > 0; });
}

std::string phase_at_target(const OwnershipRecord& record, const TreeRecord& tree) {
  using enum MigrationState;
  if (record.state() == kFinished) return phase::kMoved;
  if (record.state() == kRestoring) return tree.phase < TreePhase::kReady ? "receiving" : "ready";
  if (record.state() == kReady) return "ready";
  if (tree.phase == TreePhase::kRunning) return phase::kFilling;
  return tree.phase == TreePhase::kComplete ? phase::kMoved : phase::kHandingOver;
}

}  // namespace

std::string phase_of(const OwnershipRecord& record, const TreeRecord& tree,
                     const MigrationNotes& notes) {
  using enum MigrationState;
  if (!tree.lost.empty()) return "LOST";
  if (record.state() == kAborted) return phase::kStayed;
  if (record.role == MigrationRole::kTarget) return phase_at_target(record, tree);
  switch (record.state()) {
    case kFinished:
      return has_missing_memory(notes) ? phase::kFilling : phase::kMoved;
    case kCommitted:
      return record.plan.may_run_before_memory() ? phase::kFilling : phase::kHandingOver;
    case kSealed:
      return phase::kRestoring;
    default:
      break;
  }
  switch (tree.phase) {
    case TreePhase::kDumping:
      if (!record.plan.is_live || notes.freezes) return phase::kFrozen;
      return notes.pause_began_ns > 0 ? phase::kPaused : phase::kCopying;
    case TreePhase::kHeld:
    case TreePhase::kStopped:
      return phase::kFrozen;
    case TreePhase::kSealed:
      return phase::kRestoring;
    default:
      return record.state() == kPreparing ? phase::kPreparing : phase::kWaiting;
  }
}

TreePart part_of(const OwnershipRecord& record, size_t tree, const MigrationNotes& notes,
                 const TreeBytes& bytes) {
  const TreeNotes noted = tree < notes.trees.size() ? notes.trees[tree] : TreeNotes{};
  const std::string word = phase_of(record, record.trees[tree], notes);
  TreePart part;
  if (word == phase::kFilling) {
    part.expected_bytes = noted.fill_bytes;
    part.bytes = noted.fill_bytes - std::min(noted.missing_bytes, noted.fill_bytes);
  } else if (noted.round > 0 && (word == phase::kCopying || word == phase::kPaused)) {
    part.round = noted.round;
    part.expected_bytes = noted.round_bytes;
    part.bytes = std::min(bytes.memory_bytes - std::min(noted.earlier_bytes, bytes.memory_bytes),
                          noted.round_bytes);
  } else if (noted.round == 0 && word == phase::kFrozen) {
    part.expected_bytes = record.trees[tree].expected_bytes;
    part.bytes = std::min(bytes.bytes, part.expected_bytes);
  }
  return part;
}

MigrationNotes read_notes(const RecordStore& store, const OwnershipRecord& record) {
  MigrationNotes notes;
  const std::string directory = store.path_of(record.id, record.role);
  const bool is_source = record.role == MigrationRole::kSource;
  for (size_t tree = 0; tree < record.trees.size(); ++tree) {
    notes.trees.push_back(is_source ? read_tree_notes(directory, tree) : TreeNotes{});
    if (is_source) continue;
    TreeNotes& noted = notes.trees.back();
    noted.missing_bytes =
        read_number(store.work_path(record.id, record.role, tree) + kMissingBytesFile);
    noted.fill_bytes = std::max(noted.missing_bytes, record.trees[tree].expected_bytes);
  }
  if (!is_source) return notes;
  notes.pause_began_ns = pause_began_ns(directory);
  notes.freezes = is_pause_excluded(directory);
  LiveLimits limits{.max_downtime = std::chrono::milliseconds(0)};
  read_changed_limits(directory, limits);
  if (record.plan.is_live) notes.max_downtime = limits.max_downtime;
  return notes;
}

TreeBytes bytes_of(const WatchPage& page, const OwnershipRecord& record, const TreeRecord& tree) {
  TreeBytes found;
  const std::string memory = memory_checkpoint(record.plan, tree);
  for (const WatchedMount& mount : page.mounts) {
    if (!mount.status || mount.mount.mountpoint != record.mountpoint) continue;
    for (const json& checkpoint : objects(*mount.status, "checkpoints")) {
      const auto name = checkpoint.find("name");
      if (name == checkpoint.end() || (*name != tree.checkpoint && *name != memory)) continue;
      found.bytes += number(checkpoint, "bytes");
      if (*name == memory) found.memory_bytes += number(checkpoint, "bytes");
      found.rate_bytes_per_s += number(checkpoint, "rate_bytes_per_s");
    }
  }
  if (tree.bytes > 0) found.bytes = tree.bytes;
  return found;
}

std::vector<ScreenLine> migration_lines(const WatchPage& page, size_t columns, Charset charset) {
  return View(page, columns, charset).draw_migrations();
}

std::vector<ScreenLine> watch_lines(const WatchPage& page, size_t columns, Charset charset) {
  return View(page, columns, charset).draw();
}

}  // namespace ppmr
