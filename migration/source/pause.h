// A live move that an operator pauses from another terminal (`ppmr migrate --pause ID`): its rounds
// read and send nothing until `--resume ID`, while the processes run on. There are numbers in files
// beside the record: the coordinator reads them between rounds, the page reader all the time.
//
// A pause has no time limit, and does not count for --max-time. It ends with the migration. There
// is none once the processes are being frozen: it would only lengthen their downtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace ppmr {

// `directory`: of the record. Errors: EALREADY: it is paused; EBUSY: the processes are being
// frozen; of the file system. Threads and processes: any.
Status begin_pause(const std::string& directory);
// Returns how long the pause was. Errors: ENOENT: it is not paused; of the file system.
Result<std::chrono::nanoseconds> end_pause(const std::string& directory);
// When the present pause began (CLOCK_REALTIME); 0: there is none.
int64_t pause_began_ns(const std::string& directory);
// How long all pauses were together, the present one included.
std::chrono::nanoseconds time_paused(const std::string& directory);

// The migration is over: a round that is paused, or held back by --max-rate, ends at once.
Status abandon_rounds(const std::string& directory);

// Before the first process is frozen: returns true if there is no pause, and none may begin from
// now on. Errors: of the file system.
Result<bool> exclude_pause(const std::string& directory);
// Whether the processes are being frozen, or are frozen.
bool is_pause_excluded(const std::string& directory);

// The file whose number is not 0 during a pause, for the page reader (processes/memory/pace.h).
std::string pause_file(const std::string& directory);

}  // namespace ppmr
