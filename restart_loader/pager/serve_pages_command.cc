#include "restart_loader/pager/serve_pages_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/descriptor_limit.h"
#include "base/ending_signals.h"
#include "base/number_file.h"
#include "base/unique_fd.h"
#include "restart_loader/pager/pager.h"

namespace ppmr {
namespace {

// Prints the error in the form of CRIU's log, from which ppmr takes the first error. Does not print
// that the restore has ended, because that is not an error of the pager.
int report(const Error& error) {
  const char* prefix = error.errno_value == ECANCELED ? "" : "Error (ppmr serve-pages): ";
  std::fputs(fmt::format("{}{}\n", prefix, error.message).c_str(), stderr);
  return 1;
}

}  // namespace

int ServePagesCommand::run() const {
  // The reader of the output may have ended. An end by SIGPIPE would count as lost memory.
  std::signal(SIGPIPE, SIG_IGN);
  // Without the pager the tree would read zeros, or be killed. Only CRIU's failure or the end of
  // the tree ends the pager early. The kernel itself sends a SIGHUP: to a stopped process group
  // when the parent of its members (the supervisor) ends.
  ignore_ending_signals();
  raise_descriptor_limit();  // every process has a file in every round, each with a loan
  const auto listening = [this] {
    if (ready_fd < 0) return;
    (void)!write(ready_fd, "", 1);
    close(ready_fd);
  };
  const auto completed = [this] {
    if (complete.empty()) return;
    UniqueFd(open(complete.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  };
  const auto filling = [this](uint64_t missing_bytes) {
    (void)write_number(work + kMissingBytesFile, missing_bytes);
  };
  try {
    const auto served = serve_pages({.images = images,
                                     .bundle = bundle,
                                     .memory = memory,
                                     .work = work,
                                     .shared_images = shared_images,
                                     .fills_early = fill_early,
                                     .any_file_sizes = any_file_sizes,
                                     .leaves_locks = leave_locks,
                                     .leaves_process_locks = leave_process_locks,
                                     .listening = listening,
                                     .completed = completed,
                                     .filling = filling});
    if (!served) return report(served.error());
    std::ofstream(work + kFaultTimesFile) << nlohmann::json{
        {"buckets", served->fault_times.buckets}, {"sum_s", served->fault_times.sum_s}};
    std::fputs(fmt::format("served {} faults; {} pages, {} zero pages\n", served->faults,
                           served->pages, served->zero_pages)
                   .c_str(),
               stdout);
    return 0;
  } catch (const std::exception& error) {
    return report({EIO, error.what()});
  }
}

}  // namespace ppmr
