// `ppmr page-reader` reads the memory of frozen processes into the pool of a source's daemon,
// because the daemon has no right to read processes. `ppmr migrate` starts it, with its own rights,
// for one memory file. The page reader reads only the memory that the page index of that file
// lists, even if the daemon requests other memory. It ends when the daemon closes its ends of the
// sockets. It does not end together with `ppmr migrate`: in post-copy, the memory must still arrive
// if `ppmr migrate` is killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/memory/memory_reader.h"
#include "processes/memory/pace.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

struct PageReaderFiles {
  std::string index;  // what to read
  PaceFiles pace;     // how fast
};

void add_page_reader_command(CLI::App& app, int& exit_code);

// Serves requests of the daemon (read_messages.h) until the daemon closes its ends of the sockets.
// Reports errors in the index as replies to requests. Errors: those of the sockets and of the
// pool's memfd; EAGAIN when no thread can be started. Threads: called by one; starts one for each
// further socket.
Status serve_page_reads(std::vector<UniqueFd> sockets, const PageReaderFiles& files,
                        MemoryReader::Tree tree = MemoryReader::Tree::kFrozen);

// Threads: one.
class PageReaderProcess {
 public:
  // Starts the page reader. It reads the index when the daemon sends its first request, so it can
  // be started before the index exists. Errors: those of socketpair(2) and of spawn().
  static Result<PageReaderProcess> start(const PageReaderFiles& files,
                                         MemoryReader::Tree tree = MemoryReader::Tree::kFrozen);

  PageReaderProcess(PageReaderProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), ends_(std::move(other.ends_)) {}
  // Does not wait for the process: the daemon may need the process for longer, or may be stopped.
  ~PageReaderProcess();

  // Returns the daemon's ends of the sockets. Call it once.
  std::vector<UniqueFd> take_ends() { return std::exchange(ends_, {}); }

 private:
  PageReaderProcess() = default;

  pid_t pid_ = -1;
  std::vector<UniqueFd> ends_;
};

}  // namespace ppmr
