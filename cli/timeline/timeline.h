// The events of one migration, from its record, with times in milliseconds since its beginning.
#pragma once

#include <string>
#include <vector>

#include "migration/records/ownership_record.h"

namespace ppmr {

enum class BarKind {
  kRuns,      // the process runs, at the source or at the target
  kStands,    // the process stands still
  kLiveCopy,  // a round of memory is copied while the process runs
  kPaused,    // an operator has paused these rounds
  kDump,      // CRIU describes the frozen process
  kTransfer,  // bytes travel
  kSeal,      // after the dump: the target verifies the last bytes
  kRestore,   // CRIU restores the process
  kHandOver,  // both nodes record that the target owns the process
  kFill,      // the process runs at the target, memory still arrives
};

struct TimelineBar {
  BarKind kind;
  double begin_ms;
  double end_ms;
  std::string note;  // may be empty
};

struct TimelineRow {
  std::string label;
  std::vector<TimelineBar> bars;  // the bars do not overlap
};

struct TimelineTree {
  std::string name;  // "redis (412)"
  std::vector<TimelineRow> rows;
};

struct Timeline {
  std::string title;
  std::string subtitle;  // outcome, downtime, bytes, date
  double length_ms = 0;
  std::vector<TimelineTree> trees;
};

// With more than this number of trees, each has one row only.
inline constexpr size_t kDetailedTreesMax = 4;

// Makes the timeline. Leaves out the parts that the record does not have: the record of the target
// has no dump, and an aborted migration has no restore. Errors: ENODATA if no process was dumped or
// restored.
Result<Timeline> make_timeline(const OwnershipRecord& record);

// Returns the distance between the ticks on an axis of `length_ms`: 1, 2 or 5 times a power of ten,
// so that there are at most `ticks_max` ticks.
double tick_distance_ms(double length_ms, size_t ticks_max);

const char* label_of(BarKind kind);

// Returns a complete SVG document, 900 units wide, for light and dark backgrounds.
std::string timeline_svg(const Timeline& timeline);

// Returns the timeline as text. `utf8`: with block characters.
std::string timeline_text(const Timeline& timeline, size_t columns, bool utf8);

}  // namespace ppmr
