// How a service writes lines to the journal of systemd: to stderr, each line with its level as a
// prefix (sd-daemon(3)).
#pragma once

#include <spdlog/common.h>

#include <string_view>

namespace ppmr {

// Returns whether the descriptor is the stream of the journal. `stream`: the value of the variable
// JOURNAL_STREAM, "DEVICE:INODE"; may be null.
bool is_journal(int fd, const char* stream);

// Returns the prefix for a level, with the number of syslog(3): "<4>" for a warning.
std::string_view journal_prefix(spdlog::level::level_enum level);

}  // namespace ppmr
