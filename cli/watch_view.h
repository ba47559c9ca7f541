// The lines of the full-screen view of `ppmr status --watch`.
#pragma once

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/screen/screen.h"
#include "daemon/command_line/command_error.h"
#include "migration/records/ownership_record.h"
#include "mount/mount_table.h"

namespace ppmr {

struct WatchedMount {
  MountEntry mount;
  CommandResult<nlohmann::json> status;  // with rates (add_rates())
  std::deque<uint64_t> rates;            // in bytes per second; the latest value is the last
};

struct WatchPage {
  std::string node;
  std::string time;
  std::vector<OwnershipRecord> migrations;
  std::string no_records;  // why there are no records; empty: they could be read
  std::vector<WatchedMount> mounts;
};

// Returns the present phase of a migration in a word: "dumping", "restoring", "moved", ...
std::string phase_of(const OwnershipRecord& record, const TreeRecord& tree);

struct TreeBytes {
  uint64_t bytes = 0;
  uint64_t rate_bytes_per_s = 0;
};
// Returns what the daemons of the page's mounts report about the checkpoints of a tree.
TreeBytes bytes_of(const WatchPage& page, const OwnershipRecord& record, const TreeRecord& tree);

// Returns a line for each process tree of the page's migrations. Lines may be wider.
std::vector<ScreenLine> migration_lines(const WatchPage& page, size_t columns, Charset charset);

// Returns the lines for a terminal of `columns`. Lines may be wider.
std::vector<ScreenLine> watch_lines(const WatchPage& page, size_t columns, Charset charset);

}  // namespace ppmr
