// How lines reach the journal of systemd: a service writes them to stderr, with their level before
// them (sd-daemon(3)).
#pragma once

#include <spdlog/common.h>

#include <string_view>

namespace ppmr {

// Returns whether the descriptor is the stream of the journal. `stream`: the variable
// JOURNAL_STREAM, "DEVICE:INODE"; may be null.
bool is_journal(int fd, const char* stream);

// "<4>" for a warning, as syslog(3) numbers the levels.
std::string_view journal_prefix(spdlog::level::level_enum level);

}  // namespace ppmr
