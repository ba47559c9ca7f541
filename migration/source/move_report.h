// Reports the progress of a move: events for the command that started it, notes for `ppmr
// migrations`, pauses in its record. Nothing depends on the reports: a report that fails is left
// out.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "migration/records/record_store.h"
#include "migration/source/move_notes.h"

namespace ppmr {

struct ReportedTree {
  pid_t pid = 0;
  std::string name;
};

// Threads: any for event() and warning(); one thread for each tree for round_begins(); one thread
// for the rest.
class MoveReport {
 public:
  using OnEvent = std::function<void(const nlohmann::json& event)>;

  // `on_event` may be null; several threads call it at once. `store` outlives this object.
  MoveReport(const RecordStore& store, std::string id, std::vector<ReportedTree> trees,
             OnEvent on_event);

  // Completes the event with the migration, the time and, if it is about a tree, the tree. Never
  // throws. docs/json.md lists the events.
  void event(nlohmann::json event, std::optional<size_t> tree = {}) const;
  void warning(const std::string& sentence, std::optional<size_t> tree = {}) const;

  // Reports that a round of one tree begins. `round`: counted from 0. `bytes`: about how much it
  // will send.
  void round_begins(size_t tree, unsigned round, uint64_t bytes);
  // Reports the phase of each tree at the target, and how much of its memory is missing there.
  void fill(const std::vector<TreePhase>& phases, const std::vector<uint64_t>& missing_bytes);

  // Reports that an operator has paused or resumed the rounds since the last call.
  void follow_pause();
  // Reports the end of a pause that was reported: the migration is over.
  void end_pause();

 private:
  std::string directory() const;

  const RecordStore& store_;
  const std::string id_;
  const std::vector<ReportedTree> trees_;
  const OnEvent on_event_;
  std::vector<TreeNotes> notes_;
  int64_t pause_began_ns_ = 0;  // of a pause that was reported; 0: there is none
};

}  // namespace ppmr
