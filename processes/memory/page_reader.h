// `ppmr page-reader`: reads the memory of frozen processes into the pool of a source's daemon,
// which has no right to read processes. `ppmr migrate` starts it, with its own rights, for one
// memory file. It reads only the memory that the page index of that file lists, whatever the daemon
// requests. It ends when the daemon closes its ends of the sockets, and not with `ppmr migrate`:
// in post-copy the memory still has to follow when that was killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

void add_page_reader_command(CLI::App& app, int& exit_code);

// Serves requests of the daemon (read_messages.h) until it closes its ends of the sockets. Errors
// in the index are the replies to its requests. Errors: of the sockets and of the pool's memfd;
// EAGAIN when no thread can be started. Threads: one; starts another one.
Status serve_page_reads(std::vector<UniqueFd> sockets, const std::string& index_file);

// Threads: one.
class PageReaderProcess {
 public:
  // It reads the index when the daemon begins, so it can be started before there is one. Errors: of
  // socketpair(2) and of spawn().
  static Result<PageReaderProcess> start(const std::string& index_file);

  PageReaderProcess(PageReaderProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), ends_(std::move(other.ends_)) {}
  // Waits for nothing: the daemon may need the process for longer, or be stopped.
  ~PageReaderProcess();

  // For the daemon. Once only.
  std::vector<UniqueFd> take_ends() { return std::exchange(ends_, {}); }

 private:
  PageReaderProcess() = default;

  pid_t pid_ = -1;
  std::vector<UniqueFd> ends_;
};

}  // namespace ppmr
