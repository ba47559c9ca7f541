#include "daemon/command_line/output.h"

#include <csignal>

namespace ppmr {

void ignore_sigpipe() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace ppmr
