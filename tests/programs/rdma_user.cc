// A program that uses a device of RDMA and releases it when ppmr asks, as a messaging library does
// with jobs/rdma_release.h. The device may be any file: the program only keeps it open.
//
// Usage: rdma_user DIR DEVICE [refuse|silent|keep|shows|shows-refuse|hindered|children=N]
//   refuse     answers a release with a reason why it cannot
//   silent     never answers
//   keep       answers that it has released the device, but keeps it open
//   shows      answers to a check that the kernel knows what the device has written
//   shows-refuse  both
//   hindered   answers to a check that a release would fail
//   children=N starts N children, which also use the device and release it
//
// Appends to DIR/output; creates DIR/ready when it runs. `device` is 1 while this process has the
// device open; `releases` and `resumes` count the requests of all processes.

#include <poll.h>
#include <sys/mman.h>

#include <atomic>

#include "jobs/rdma_release.h"
#include "pipe_child.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr int64_t kLineIntervalNs = 10'000'000;

struct Counters {
  std::atomic<uint64_t> releases, resumes;
};

class RdmaUser {
 public:
  RdmaUser(std::string device, std::string behaviour, Counters* counters)
      : device_(std::move(device)), behaviour_(std::move(behaviour)), counters_(counters) {
    open_device();
    if (ppmr_rdma_open(&rdma_) != 0) die("register");
    rdma_.answers_checks = behaviour_.starts_with("shows") || behaviour_ == "hindered";
  }

  bool has_device() const { return descriptor_ >= 0; }

  // Obeys ppmr's requests for `time_ns` nanoseconds.
  void serve_for(int64_t time_ns) {
    const int64_t end_ns = monotonic_ns() + time_ns;
    for (int64_t left_ns = time_ns; left_ns > 0; left_ns = end_ns - monotonic_ns()) {
      pollfd request = {ppmr_rdma_fd(&rdma_), POLLIN, 0};
      poll(&request, 1, static_cast<int>(left_ns / 1'000'000) + 1);
      if (request.revents != 0 && behaviour_ != "silent") obey();
      if (behaviour_ == "silent" && request.revents != 0) sleep_ns(left_ns);
    }
  }

 private:
  void open_device() {
    descriptor_ = open(device_.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor_ < 0) die("open the device");
  }

  void obey() {
    switch (ppmr_rdma_next(&rdma_)) {
      case PPMR_RDMA_RELEASE:
        ++counters_->releases;
        if (behaviour_.ends_with("refuse")) {
          return ppmr_rdma_done(&rdma_, "a transfer cannot be interrupted");
        }
        if (behaviour_ != "keep" && has_device()) {
          close(descriptor_);
          descriptor_ = -1;
        }
        return ppmr_rdma_done(&rdma_, nullptr);
      case PPMR_RDMA_RESUME:
        ++counters_->resumes;
        if (!has_device()) open_device();
        return ppmr_rdma_done(&rdma_, nullptr);
      case PPMR_RDMA_CHECK:
        return ppmr_rdma_answer(&rdma_, behaviour_.starts_with("shows")
                                            ? PPMR_RDMA_CHECKED "\nshows-writes\n"
                                            : PPMR_RDMA_CHECKED "\nhindrance a peer is deaf\n");
      case PPMR_RDMA_NONE:
        break;
    }
  }

  const std::string device_;
  const std::string behaviour_;
  Counters* const counters_;
  int descriptor_ = -1;
  ppmr_rdma rdma_{};
};

int run(const std::string& directory, const std::string& device, const std::string& behaviour) {
  void* shared =
      mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) die("mmap");
  auto* counters = new (shared) Counters;
  const int children = behaviour.starts_with("children=")
                           ? std::atoi(behaviour.c_str() + sizeof("children=") - 1)
                           : 0;
  for (int i = 0; i < children; ++i) {
    start_child([&] {
      RdmaUser user(device, behaviour, counters);
      for (;;) user.serve_for(kLineIntervalNs);
    });
  }
  RdmaUser user(device, behaviour, counters);
  { LineFile output(directory + "/output"), ready(directory + "/ready"); }
  for (uint64_t line = 1;; ++line) {
    user.serve_for(kLineIntervalNs);
    // Opens the file for each line, because CRIU refuses to restore a copy whose original has made
    // an open file longer.
    const int file =
        open((directory + "/output").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const int written = dprintf(
        file, "line=%llu pid=%d node=%s device=%d releases=%llu resumes=%llu\n",
        static_cast<unsigned long long>(line), getpid(), node_name().c_str(),
        user.has_device() ? 1 : 0, static_cast<unsigned long long>(counters->releases.load()),
        static_cast<unsigned long long>(counters->resumes.load()));
    if (written < 0) die("append a line");
    close(file);
  }
}

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fprintf(stderr,
            "usage: rdma_user DIR DEVICE "
            "[refuse|silent|keep|shows|shows-refuse|hindered|children=N]\n");
    return 2;
  }
  return ppmr_programs::run(argv[1], argv[2], argc == 4 ? argv[3] : "");
}
