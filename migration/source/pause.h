// Pauses a live move at the request of an operator in another terminal (`ppmr migrate --pause ID`).
// The rounds read and send nothing until `--resume ID`; the processes run on. A pause is stored as
// numbers in files beside the record: the coordinator reads them between rounds, and the page
// reader reads them all the time.
//
// A pause has no time limit, and does not count for --max-time. It ends with the migration. No
// pause can begin after the freeze has begun: it would only lengthen the downtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace ppmr {

// Begins a pause. `directory`: the record's. Errors: EALREADY: the move is paused; EBUSY: the
// processes are being frozen; those of the file system. Threads and processes: any.
Status begin_pause(const std::string& directory);
// Ends the pause, and returns how long it was. Errors: ENOENT: the move is not paused; those of the
// file system.
Result<std::chrono::nanoseconds> end_pause(const std::string& directory);
// Returns when the present pause began (CLOCK_REALTIME); 0: there is none.
int64_t pause_began_ns(const std::string& directory);
// Returns the total time of all pauses, including the present one.
std::chrono::nanoseconds time_paused(const std::string& directory);

// Called when the migration is over. Ends a paused round at once, or a round that --max-rate holds
// back.
Status abandon_rounds(const std::string& directory);

// Called before the first process is frozen. Returns true if there is no pause; from then on, none
// can begin. Errors: those of the file system.
Result<bool> exclude_pause(const std::string& directory);
// Returns whether the processes are being frozen, or are frozen.
bool is_pause_excluded(const std::string& directory);

// The file whose number is not 0 during a pause, for the page reader (processes/memory/pace.h).
std::string pause_file(const std::string& directory);

}  // namespace ppmr
