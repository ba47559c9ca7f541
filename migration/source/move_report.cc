#include "migration/source/move_report.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/without_exceptions.h"
#include "migration/source/pause.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr MigrationRole kRole = MigrationRole::kSource;

}  // namespace

MoveReport::MoveReport(const RecordStore& store, std::string id, std::vector<ReportedTree> trees,
                       OnEvent on_event)
    : store_(store),
      id_(std::move(id)),
      trees_(std::move(trees)),
      on_event_(std::move(on_event)),
      notes_(trees_.size()) {}

std::string MoveReport::directory() const { return store_.path_of(id_, kRole); }

// Some events come after the decision, when nothing may throw.
void MoveReport::event(json event, std::optional<size_t> tree) const {
  (void)without_exceptions([&]() -> Status {
    event["migration"] = id_;
    event["time_ns"] = realtime_ns();
    if (tree) {
      event["pid"] = trees_.at(*tree).pid;
      event["name"] = trees_.at(*tree).name;
    }
    if (on_event_) on_event_(event);
    return {};
  });
}

void MoveReport::warning(const std::string& sentence, std::optional<size_t> tree) const {
  event({{"event", "warning"}, {"sentence", sentence}}, tree);
}

void MoveReport::round_begins(size_t tree, unsigned round, uint64_t bytes) {
  TreeNotes& notes = notes_[tree];
  if (round == 0) notes = {};  // the rounds may begin anew
  notes.earlier_bytes += notes.round_bytes;
  notes.round = round + 1;
  notes.round_bytes = bytes;
  (void)write_tree_notes(directory(), tree, notes);
  event({{"event", "round"}, {"round", round}, {"bytes", bytes}}, tree);
}

void MoveReport::fill(const std::vector<TreePhase>& phases,
                      const std::vector<uint64_t>& missing_bytes) {
  for (size_t i = 0; i < notes_.size(); ++i) {
    TreeNotes& notes = notes_[i];
    const bool fills = phases[i] == TreePhase::kRunning && i < missing_bytes.size();
    const uint64_t missing = fills ? missing_bytes[i] : 0;
    if (missing == notes.missing_bytes) continue;
    notes.missing_bytes = missing;
    notes.fill_bytes = std::max(notes.fill_bytes, missing);
    (void)write_tree_notes(directory(), i, notes);
    if (!fills) continue;
    event({{"event", "filling"}, {"missing_bytes", missing}, {"bytes", notes.fill_bytes}}, i);
  }
}

void MoveReport::follow_pause() {
  const int64_t began_ns = pause_began_ns(directory());
  if (began_ns == pause_began_ns_) return;
  end_pause();
  pause_began_ns_ = began_ns;
  if (began_ns > 0) event({{"event", "paused"}});
}

// Adds the pause to the record, for `ppmr timeline`.
void MoveReport::end_pause() {
  if (pause_began_ns_ == 0) return;
  const PauseRecord pause{std::exchange(pause_began_ns_, 0), realtime_ns()};
  event({{"event", "resumed"}, {"paused_ms", (pause.ended_ns - pause.began_ns) / 1'000'000}});
  (void)store_.change(id_, kRole, [&](OwnershipRecord& latest) -> Status {
    latest.pauses.push_back(pause);
    return {};
  });
}

}  // namespace ppmr
