#include "restart_loader/criu/lazy_dump.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

// This number is free in a CRIU that runc or ppmr starts, and below the descriptors that CRIU
// reserves for itself.
constexpr int kPageClient = 60;

}  // namespace

std::vector<std::string> lazy_dump_options() {
  return {"--lazy-pages", "--ps-socket", std::to_string(kPageClient)};
}

Status open_ended_page_client() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("create a socket for", "CRIU's page server");
  }
  const UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  // dup2() clears the close-on-exec flag.
  if (dup2(theirs.get(), kPageClient) < 0) return system_failure("pass a socket to", "CRIU");
  return {};
}

}  // namespace ppmr
