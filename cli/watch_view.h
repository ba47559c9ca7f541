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
  CommandResult<nlohmann::json> status;  // with rates, see add_rates()
  std::deque<uint64_t> rates;            // bytes per second, the latest last
};

struct WatchPage {
  std::string node;
  std::string time;
  std::vector<OwnershipRecord> migrations;
  std::string no_records;  // why there are none; empty: they could be read
  std::vector<WatchedMount> mounts;
};

// What a migration does now, in a word: "dumping", "restoring", "moved", ...
std::string phase_of(const OwnershipRecord& record, const TreeRecord& tree);

// Draws for a terminal of `columns`; lines may be wider.
std::vector<ScreenLine> watch_lines(const WatchPage& page, size_t columns, Charset charset);

}  // namespace ppmr
