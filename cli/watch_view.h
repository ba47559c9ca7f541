// The lines of the full-screen view of `ppmr status --watch`.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/screen/screen.h"
#include "daemon/command_line/command_error.h"
#include "migration/records/record_store.h"
#include "migration/source/move_notes.h"
#include "mount/mount_table.h"

namespace ppmr {

struct WatchedMount {
  MountEntry mount;
  CommandResult<nlohmann::json> status;  // with rates (add_rates())
  std::deque<uint64_t> rates;            // in bytes per second; the latest value is the last
};

// What a coordinator or a pager has noted beside the record of a migration.
struct MigrationNotes {
  int64_t pause_began_ns = 0;  // 0: it is not paused
  bool freezes = false;        // its processes are frozen, or will be at once
  std::vector<TreeNotes> trees;
  std::chrono::milliseconds max_downtime{0};  // the promise; 0: none, or unknown
};
MigrationNotes read_notes(const RecordStore& store, const OwnershipRecord& record);

struct WatchPage {
  std::string node;
  std::string time;
  std::vector<OwnershipRecord> migrations;
  std::string no_records;  // why there are no records; empty: they could be read
  std::vector<WatchedMount> mounts;
  std::map<std::string, MigrationNotes> notes = {};  // key: RecordStore::name_of()

  // Returns the notes of the migration; empty notes if it has none.
  const MigrationNotes& notes_of(const OwnershipRecord& record) const;
};

// Returns the present phase of a migration in a word, see phase_words.h.
std::string phase_of(const OwnershipRecord& record, const TreeRecord& tree,
                     const MigrationNotes& notes = {});

struct TreeBytes {
  uint64_t bytes = 0;
  uint64_t memory_bytes = 0;  // of `bytes`: in the checkpoint of the memory
  uint64_t rate_bytes_per_s = 0;
};

// The bytes to which the percentage and the time left refer: the bytes of the present round, of the
// fill, or of the whole move.
struct TreePart {
  uint64_t round = 0;  // counts from 1; 0: none
  uint64_t bytes = 0;
  uint64_t expected_bytes = 0;  // 0: unknown
};
TreePart part_of(const OwnershipRecord& record, size_t tree, const MigrationNotes& notes,
                 const TreeBytes& bytes);
// Returns what the daemons of the page's mounts report about the checkpoints of a tree.
TreeBytes bytes_of(const WatchPage& page, const OwnershipRecord& record, const TreeRecord& tree);

// Returns a line for each process tree of the page's migrations. A line may be wider than
// `columns`.
std::vector<ScreenLine> migration_lines(const WatchPage& page, size_t columns, Charset charset);

// Returns the lines for a terminal of this width. A line may be wider than `columns`.
std::vector<ScreenLine> watch_lines(const WatchPage& page, size_t columns, Charset charset);

}  // namespace ppmr
