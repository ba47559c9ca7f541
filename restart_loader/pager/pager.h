// Serves the memory of a lazily restored tree: the server of its userfaultfds, in place of
// `criu lazy-pages`.
//
// clang-format off
//   criu restore --lazy-pages -- socket lazy-pages.socket --> pid, userfaultfd of each task;
//                                                             "finished"
//   kernel -- fork, mremap, munmap, madvise, page fault ----> serving thread
//                                              page fault ----> answering threads
//                                                             filling threads: all other pages
// clang-format on
//
// The socket has the protocol of criu/uffd.c (CRIU 3.17 to 4.2). For each task CRIU sends a 32-bit
// pid and the descriptor; a negative pid is a zombie and has no descriptor. At the end CRIU sends
// kRestoreFinished. Faults can arrive before the end, and CRIU waits for the answers.
//
// Threads copy pages in parallel, but not while the serving thread reads the kernel's events. So no
// thread copies a page to an address that the kernel has reported as unmapped or moved.
#pragma once

#include <functional>
#include <string>

#include "base/duration_buckets.h"
#include "base/result.h"

namespace ppmr {

inline constexpr uint32_t kRestoreFinished = 0x52535446;
// The name of the socket in CRIU's work directory.
inline constexpr const char* kPagerSocket = "lazy-pages.socket";
// The file in the same directory to which the pager writes FaultTimes as JSON when all pages are in
// place. The metrics include them.
inline constexpr const char* kFaultTimesFile = "/page-faults.json";

// The file in the same directory with the bytes that are still missing (base/number_file.h).
inline constexpr const char* kMissingBytesFile = "/missing-bytes";

struct PagerCounters {
  uint64_t faults = 0;
  uint64_t pages = 0;       // number of pages that were copied
  uint64_t zero_pages = 0;  // answers to faults where the images have no page
  FaultTimes fault_times;   // from reading the event until the answer
};

struct PagerOptions {
  std::string images;  // the directory of the images
  std::string bundle;  // path of the bundle, see RestoreImages; empty: none
  std::string memory;  // path of the memory file, see PageImages
  std::string work;    // the directory of the pager's socket
  // If CRIU must restore from other images (restore_images.h), the pager makes this link to them
  // before it listens. Empty: CRIU restores from `images`, and no pages are shared.
  std::string shared_images;
  // Whether the pager puts pages in place as they arrive, before the memory file is complete
  // (post-copy).
  bool fills_early = false;
  // What CRIU must not restore from its images: the sizes of written files, and the locks of open
  // file descriptions, or all but leases. Needs `shared_images`; if the link to them cannot be
  // made, that is an error.
  bool any_file_sizes = false;
  bool leaves_locks = false;
  bool leaves_process_locks = false;
  std::function<void()> listening;
  // Called in another thread when the memory file is complete.
  std::function<void()> completed;
  // Called several times per second with the number of missing bytes, while the tree runs. May be
  // empty.
  std::function<void(uint64_t missing_bytes)> filling;
};

// Returns when every page of every task is in place. Errors: those of PageImages and of
// userfaultfd(2); ECONNRESET if CRIU ends before it has restored all tasks. After an error, tasks
// that miss pages must not continue: they read zeros once their userfaultfds are closed. So the
// userfaultfds stay open until this process ends. Threads: one call at a time.
Result<PagerCounters> serve_pages(const PagerOptions& options);

}  // namespace ppmr
