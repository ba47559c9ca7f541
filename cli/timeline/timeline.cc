#include "cli/timeline/timeline.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "daemon/command_line/terminal_text.h"
#include "daemon/command_line/size_option.h"

namespace ppmr {
namespace {

// No part of a migration lasts longer. The drawing leaves out later times, which a wrong clock of
// the peer can cause.
constexpr double kLengthMsMax = 7 * 24 * 3600e3;
constexpr size_t kReasonColumns = 60;
constexpr Charset kAscii = Charset::kAscii;

std::string duration(double time_ms) {
  if (time_ms < 10'000) return fmt::format("{:.{}f} ms", time_ms, time_ms < 10 ? 1 : 0);
  return format_time(std::chrono::microseconds(std::llround(time_ms * 1000)));
}

class Drawing {
 public:
  explicit Drawing(const OwnershipRecord& record)
      : record_(record), origin_ns_(record.history().front().at_ns) {
    if (is_aborted()) aborted_ms_ = at(record.history().back().at_ns);
  }
  Result<Timeline> draw();

 private:
  using Time = std::optional<double>;

  bool is_aborted() const { return record_.state() == MigrationState::kAborted; }
  bool is_rehearsed() const {
    return is_aborted() && record_.plan.is_rehearsal && record_.error.empty();
  }
  Time at(int64_t time_ns) const;
  void add(TimelineRow& row, BarKind kind, Time begin, Time end, const std::string& note = "");
  void add_process(const TreeRecord& tree, TimelineTree& drawn);
  void add_details(const TreeRecord& tree, TimelineTree& drawn);
  void add_summary(const TreeRecord& tree, TimelineTree& drawn);
  Time dump_began(const TreeRecord& tree) const;
  Time restored(const TreeRecord& tree) const;
  Time restore_began(const TreeRecord& tree) const;
  std::string title() const;
  std::string subtitle() const;

  const OwnershipRecord& record_;
  const int64_t origin_ns_;
  Time aborted_ms_;
  Timeline timeline_;
};

Drawing::Time Drawing::at(int64_t time_ns) const {
  int64_t since_ns = 0;
  if (time_ns <= 0 || __builtin_sub_overflow(time_ns, origin_ns_, &since_ns)) return std::nullopt;
  const double time_ms = static_cast<double>(since_ns) / 1e6;
  if (time_ms < 0 || time_ms > kLengthMsMax) return std::nullopt;
  // A thread may have recorded a later time after the abort. By then the process went on at the
  // source.
  return aborted_ms_ ? std::min(time_ms, *aborted_ms_) : time_ms;
}

void Drawing::add(TimelineRow& row, BarKind kind, Time begin, Time end, const std::string& note) {
  if (!begin || !end || *end <= *begin) return;
  row.bars.push_back({kind, *begin, *end, note});
  timeline_.length_ms = std::max(timeline_.length_ms, *end);
}

// Returns the time when the dump began. For older records, which lack it, returns the time of the
// freeze.
Drawing::Time Drawing::dump_began(const TreeRecord& tree) const {
  const Time began = at(tree.dump_began_ns);
  return began ? began : at(tree.freeze_began_ns);
}

Drawing::Time Drawing::restored(const TreeRecord& tree) const {
  const bool is_source = record_.role == MigrationRole::kSource;
  return at(is_source ? tree.restored_ns : tree.held_ns);
}

Drawing::Time Drawing::restore_began(const TreeRecord& tree) const {
  const Time began = at(tree.restore_began_ns);
  return began ? began : at(tree.sealed_ns);
}

void Drawing::add_process(const TreeRecord& tree, TimelineTree& drawn) {
  TimelineRow row{"process", {}};
  const Time frozen = at(tree.freeze_began_ns);
  const Time here_again = tree.goes_on_ns > 0 ? at(tree.goes_on_ns) : aborted_ms_;
  const Time again = tree.running_ns > 0 ? at(tree.running_ns) : here_again;
  const std::string length = frozen && again ? "stands still " + duration(*again - *frozen) : "";
  add(row, BarKind::kRuns, Time(0), frozen, "at the source");
  if (!record_.plan.original_goes_on) add(row, BarKind::kStands, frozen, again, length);
  // Without this minimum, a process that has all memory when it starts would have no bar "at the
  // target".
  const Time shown = again ? Time(*again + timeline_.length_ms * 0.05) : Time();
  const Time end = std::max(at(tree.complete_ns), shown);
  if (is_aborted()) {
    if (frozen) add(row, BarKind::kRuns, again, shown, "at the source");
  } else if (tree.running_ns > 0) {
    add(row, BarKind::kRuns, again, end, "at the target");
  }
  drawn.rows.push_back(std::move(row));
}

void Drawing::add_details(const TreeRecord& tree, TimelineTree& drawn) {
  const bool is_source = record_.role == MigrationRole::kSource;
  const Time frozen = at(tree.freeze_began_ns);
  const Time held = is_source ? at(tree.held_ns) : Time();
  const Time sealed = at(tree.sealed_ns);
  TimelineRow rounds{"live copy", {}};
  Time round_began = dump_began(tree);
  for (size_t i = 0; i < tree.rounds.size(); ++i) {
    const Time ended = at(tree.rounds[i].ended_ns);
    add(rounds, BarKind::kLiveCopy, round_began, ended,
        fmt::format("{}: {}", i + 1, format_size(tree.rounds[i].bytes)));
    round_began = ended;
  }
  const Time sent = tree.rounds.empty() ? frozen : dump_began(tree);
  TimelineRow paused{"paused", {}};
  for (const PauseRecord& pause : record_.pauses) {
    const Time began = at(pause.began_ns);
    const Time ended = at(pause.ended_ns);
    add(paused, BarKind::kPaused, began, ended, began && ended ? duration(*ended - *began) : "");
  }
  TimelineRow dump{"dump", {}};
  add(dump, BarKind::kDump, frozen, held, frozen && held ? duration(*held - *frozen) : "");
  TimelineRow transfer{"transfer", {}};
  const Time arrived =
      record_.plan.may_run_before_memory() && at(tree.complete_ns) ? at(tree.complete_ns) : sealed;
  add(transfer, BarKind::kTransfer, sent, arrived,
      tree.bytes > 0 && !is_aborted() ? format_size(tree.bytes) : "");
  TimelineRow seal{"seal", {}};
  add(seal, BarKind::kSeal, held, sealed, held && sealed ? duration(*sealed - *held) : "");
  TimelineRow restore{"restore", {}};
  const Time began = restore_began(tree);
  const Time ended = restored(tree);
  add(restore, BarKind::kRestore, began, ended, began && ended ? duration(*ended - *began) : "");
  TimelineRow hand_over{"hand over", {}};
  const Time running = at(tree.running_ns);
  add(hand_over, BarKind::kHandOver, ended, running,
      ended && running ? duration(*running - *ended) : "");
  TimelineRow fill{"fill", {}};
  const Time complete = at(tree.complete_ns);
  add(fill, BarKind::kFill, running, complete,
      running && complete ? duration(*complete - *running) : "");
  for (TimelineRow* row :
       {&rounds, &paused, &dump, &transfer, &seal, &restore, &hand_over, &fill}) {
    if (!row->bars.empty()) drawn.rows.push_back(std::move(*row));
  }
}

// Draws one row: the parts of the time in which the process stood still, and the fill.
void Drawing::add_summary(const TreeRecord& tree, TimelineTree& drawn) {
  const bool is_source = record_.role == MigrationRole::kSource;
  const Time held = is_source ? at(tree.held_ns) : Time();
  TimelineRow row{"", {}};
  Time before = dump_began(tree);
  if (!tree.rounds.empty()) add(row, BarKind::kLiveCopy, before, at(tree.freeze_began_ns));
  add(row, BarKind::kDump, at(tree.freeze_began_ns), held);
  add(row, BarKind::kSeal, held, at(tree.sealed_ns));
  add(row, BarKind::kRestore, is_source ? at(tree.sealed_ns) : restore_began(tree), restored(tree));
  add(row, BarKind::kHandOver, restored(tree), at(tree.running_ns));
  add(row, BarKind::kFill, at(tree.running_ns), at(tree.complete_ns));
  if (!row.bars.empty()) drawn.rows.push_back(std::move(row));
}

std::string Drawing::title() const {
  const TreeRecord& first = record_.trees.front();
  std::string what = fmt::format("{} ({})", first.name, first.root);
  if (record_.trees.size() > 1) what += fmt::format(" and {} more", record_.trees.size() - 1);
  const char* direction = record_.role == MigrationRole::kSource ? "to" : "from";
  return fmt::format("{} {} {}", what, direction,
                     record_.peer.empty() ? "another node" : record_.peer);
}

std::string Drawing::subtitle() const {
  const bool has_run =
      record_.all_trees(TreePhase::kRunning) || record_.trees.front().running_ns > 0;
  std::string text = record_.has_losses()                          ? "LOST"
                     : is_rehearsed()                              ? "rehearsed: would move"
                     : record_.state() == MigrationState::kAborted ? "stayed"
                     : record_.plan.original_goes_on && has_run    ? "copied"
                     : has_run                                     ? "moved"
                                                                   : to_string(record_.state());
  if (is_aborted()) {
    const std::string& why = record_.first_error();
    if (!why.empty()) text += ": " + cut(printable(why, Charset::kUtf8), kReasonColumns, kAscii);
  }
  double downtime_ms = -1;
  uint64_t bytes = 0;
  for (const TreeRecord& tree : record_.trees) {
    bytes += tree.bytes;
    if (tree.freeze_began_ns <= 0 || tree.running_ns < tree.freeze_began_ns) continue;
    downtime_ms =
        std::max(downtime_ms, static_cast<double>(tree.running_ns - tree.freeze_began_ns) / 1e6);
  }
  if (downtime_ms >= 0 && !record_.plan.original_goes_on)
    text += ", downtime " + duration(downtime_ms);
  if (bytes > 0 && !is_aborted()) text += ", " + format_size(bytes);
  const time_t began = static_cast<time_t>(origin_ns_ / 1'000'000'000);
  tm date{};
  char shown[40] = "";
  if (gmtime_r(&began, &date) != nullptr) strftime(shown, sizeof shown, "%F %T UTC", &date);
  return fmt::format("{}, {}, migration {}", text, shown, record_.id.substr(0, 8));
}

Result<Timeline> Drawing::draw() {
  timeline_.title = title();
  timeline_.subtitle = subtitle();
  const bool detailed = record_.trees.size() <= kDetailedTreesMax;
  for (const TreeRecord& tree : record_.trees) {
    // A timeline with one row per tree has little room for the name, so the pid comes first.
    TimelineTree drawn{detailed ? fmt::format("{} ({})", tree.name, tree.root)
                                : fmt::format("{} {}", tree.root, tree.name),
                       {}};
    if (detailed) {
      add_details(tree, drawn);
      const bool has_parts = !drawn.rows.empty();
      add_process(tree, drawn);
      std::rotate(drawn.rows.begin(), drawn.rows.end() - 1, drawn.rows.end());
      if (!has_parts && drawn.rows.front().bars.size() < 2) drawn.rows.clear();
      if (!drawn.rows.empty() && drawn.rows.front().bars.empty()) {
        drawn.rows.erase(drawn.rows.begin());
      }
    } else {
      add_summary(tree, drawn);
    }
    if (!drawn.rows.empty()) timeline_.trees.push_back(std::move(drawn));
  }
  if (timeline_.trees.empty()) {
    return failure(ENODATA,
                   fmt::format("migration {} has nothing to draw: it is {}, and no process "
                               "was dumped or restored on this node",
                               record_.id, to_string(record_.state())));
  }
  return std::move(timeline_);
}

}  // namespace

Result<Timeline> make_timeline(const OwnershipRecord& record) { return Drawing(record).draw(); }

double tick_distance_ms(double length_ms, size_t ticks_max) {
  const double at_least = length_ms / static_cast<double>(std::max<size_t>(ticks_max, 1));
  double distance = 0.001;
  for (;;) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (distance * factor >= at_least) return distance * factor;
    }
    distance *= 10;
  }
}

const char* label_of(BarKind kind) {
  switch (kind) {
    case BarKind::kRuns:
      return "runs";
    case BarKind::kStands:
      return "stands still";
    case BarKind::kLiveCopy:
      return "live copy";
    case BarKind::kPaused:
      return "paused";
    case BarKind::kDump:
      return "dump";
    case BarKind::kTransfer:
      return "transfer";
    case BarKind::kSeal:
      return "seal";
    case BarKind::kRestore:
      return "restore";
    case BarKind::kHandOver:
      return "hand over";
    case BarKind::kFill:
      return "fill";
  }
  return "";
}

}  // namespace ppmr
