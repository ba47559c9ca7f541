// What the library reports about itself: nothing, unless PPMR_VERBS_LOG is set. "1": to standard
// error; else the path of a file, to which lines are appended.
#pragma once

namespace ppmr::verbs {

// One line, with the time and the process. printf formats. Threads: any.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace ppmr::verbs
