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
// The protocol of the socket is that of criu/uffd.c (CRIU 3.17 to 4.2): for each task a 32-bit pid
// and, unless it is negative (a zombie), the descriptor; at the end kRestoreFinished. Faults can
// arrive before the end, and CRIU waits for the answers.
//
// Threads copy pages side by side, but not while the serving thread reads the kernel's events. So
// no page is copied to an address that the kernel has reported as unmapped or moved.
#pragma once

#include <functional>
#include <string>

#include "base/duration_buckets.h"
#include "base/result.h"

namespace ppmr {

inline constexpr uint32_t kRestoreFinished = 0x52535446;
// Of the socket, in CRIU's work directory.
inline constexpr const char* kPagerSocket = "lazy-pages.socket";
// In the same directory: FaultTimes as JSON, once all pages are in place. For the metrics.
inline constexpr const char* kFaultTimesFile = "/page-faults.json";

struct PagerCounters {
  uint64_t faults = 0;
  uint64_t pages = 0;       // copied
  uint64_t zero_pages = 0;  // answers to faults where the images have no page
  FaultTimes fault_times;   // from reading the event until the answer
};

struct PagerOptions {
  std::string images;  // their directory
  std::string bundle;  // see RestoreImages; empty: none
  std::string memory;  // see PageImages
  std::string work;    // the directory in which it listens
  // If CRIU must restore from other images (restore_images.h), the pager makes this link to them
  // before it listens. Empty: CRIU restores from `images`, and no pages are shared.
  std::string shared_images;
  // Whether pages are put in place before the memory file is complete, as they arrive (post-copy).
  bool fills_early = false;
  std::function<void()> listening;
  std::function<void()> completed;  // the memory file is complete; called in another thread
};

// Returns when every page of every task is in place. Errors: those of PageImages and of
// userfaultfd(2); ECONNRESET if CRIU ends before it has restored all tasks. After an error, tasks
// that miss pages must not run on: once their userfaultfd is closed they read zeros. So it stays
// open until this process ends. Threads: one call at a time.
Result<PagerCounters> serve_pages(const PagerOptions& options);

}  // namespace ppmr
