#include "processes/memory/write_sample.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kMib = size_t{1} << 20;

// A child that uses 8 MiB, and writes 1 MiB of it over and over. The counter is in shared memory.
class Writer {
 public:
  Writer() {
    turns_ = static_cast<std::atomic<uint64_t>*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto* const memory = static_cast<volatile char*>(
        mmap(nullptr, 8 * kMib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t at = 0; at < 8 * kMib; at += 4096) memory[at] = 1;
    for (;;) {
      for (size_t at = 0; at < kMib; at += 4096) memory[at] = 1;  // the same value each time
      ++*turns_;
    }
  }
  ~Writer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(turns_, 4096);
  }
  pid_t pid() const { return pid_; }
  void await_turns(uint64_t more) const {
    const uint64_t until = *turns_ + more;
    while (*turns_ < until) usleep(100);
  }

 private:
  std::atomic<uint64_t>* turns_;
  pid_t pid_;
};

TEST(WriteSample, CountsWhatIsWrittenAndLeavesNothingBehind) {
  const Writer writer;
  writer.await_turns(1);
  const auto before = read_descriptors(writer.pid());
  ASSERT_TRUE(before);
  const auto samples = sample_writes({writer.pid(), 0x3fffffff});
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_FALSE(samples[1]) << "there is no such process";
  if (!samples[0] && samples[0].error().errno_value == EOPNOTSUPP) {
    GTEST_SKIP() << samples[0].error().message;
  }
  ASSERT_TRUE(samples[0]) << samples[0].error().message;
  EXPECT_GE(samples[0]->memory_bytes, 8 * kMib);
  ASSERT_FALSE(samples[0]->written.empty());
  const WrittenAfter& last = samples[0]->written.back();
  EXPECT_GE(last.bytes, kMib) << "the pages are written again, with the same values";
  EXPECT_LT(last.bytes, 4 * kMib);
  EXPECT_GT(last.after.count(), 0);
  EXPECT_TRUE(std::is_sorted(samples[0]->written.begin(), samples[0]->written.end(),
                             [](const WrittenAfter& left, const WrittenAfter& right) {
                               return left.bytes < right.bytes;
                             }));
  const auto after = read_descriptors(writer.pid());
  ASSERT_TRUE(after);
  EXPECT_EQ(after->size(), before->size());
  const auto status = read_process_file(writer.pid(), "status");
  ASSERT_TRUE(status);
  EXPECT_NE(status->find("TracerPid:\t0"), std::string::npos);
  writer.await_turns(2);
}

}  // namespace
}  // namespace ppmr
