// The log of the library. It is off unless the variable PPMR_VERBS_LOG is set. "1": writes to
// standard error. Any other value is the path of a file, to which the library appends lines.
#pragma once

namespace ppmr::verbs {

// Writes one line, with the time and the pid. The arguments are as for printf(3). Threads: any.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace ppmr::verbs
