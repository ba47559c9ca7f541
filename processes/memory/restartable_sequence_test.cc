#include "processes/memory/restartable_sequence.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <new>
#include <thread>

#include "processes/memory/injected_calls.h"
#include "processes/test_process.h"

#if defined(__x86_64__) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>  // since glibc 2.35, which registers an area for each thread
#define HAS_RSEQ_OF_GLIBC 1
#endif

namespace ppmr {
namespace {

TEST(RestartableSequence, AnInterruptedSectionContinuesAtItsAbortAddress) {
  constexpr RestartableSection kSection{
      .start_ip = 0x1000, .post_commit_offset = 0x20, .abort_ip = 0x3000};
  EXPECT_EQ(ip_after_interruption(0x1000, kSection), 0x3000u);
  EXPECT_EQ(ip_after_interruption(0x101f, kSection), 0x3000u);
}

TEST(RestartableSequence, AThreadOutsideOfTheSectionContinuesWhereItWas) {
  constexpr RestartableSection kSection{
      .start_ip = 0x1000, .post_commit_offset = 0x20, .abort_ip = 0x3000};
  EXPECT_EQ(ip_after_interruption(0xfff, kSection), 0xfffu);
  EXPECT_EQ(ip_after_interruption(0x1020, kSection), 0x1020u) << "the section is committed";
  EXPECT_EQ(ip_after_interruption(0x3000, kSection), 0x3000u) << "the section is aborted already";
  EXPECT_EQ(ip_after_interruption(0, kSection), 0u);
  EXPECT_EQ(ip_after_interruption(std::numeric_limits<uint64_t>::max(), kSection),
            std::numeric_limits<uint64_t>::max());
}

TEST(RestartableSequence, NoThreadIsInAnEmptySection) {
  constexpr RestartableSection kSection{.start_ip = 0x1000, .abort_ip = 0x3000};
  EXPECT_EQ(ip_after_interruption(0x1000, kSection), 0x1000u);
}

#ifdef HAS_RSEQ_OF_GLIBC

// Counts how often the section begins. The section is an endless loop, which the thread leaves only
// if the section is aborted.
extern "C" [[noreturn]] void run_sections(uint64_t* rseq_cs, const RestartableSection* section,
                                          std::atomic<uint64_t>* begun);
extern "C" const char section_start[], section_end[], section_abort[];
asm(R"(
    .pushsection .text
  run_sections:
    lock incq (%rdx)
    movq %rsi, (%rdi)
  section_start:
    pause
    jmp section_start
  section_end:
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053  # RSEQ_SIG, with which glibc registers
  section_abort:
    jmp run_sections
    .popsection
)");

uint64_t address_of(const char* label) { return reinterpret_cast<uint64_t>(label); }

// Threads: one.
class ProcessInSection {
 public:
  ProcessInSection() : begun_(map_shared()), process_([this] { run(); }) {}
  ProcessInSection(const ProcessInSection&) = delete;
  ~ProcessInSection() { munmap(begun_, sizeof(*begun_)); }

  pid_t pid() const { return process_.pid(); }
  uint64_t begun() const { return *begun_; }
  // Sends signals until more than `after` sections have begun: the kernel aborts the section for a
  // signal. A signal between two sections aborts none, so one signal may not be enough.
  bool begins_again(uint64_t after) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begun() <= after) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      kill(pid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  void run() const {
    signal(SIGUSR1, [](int) {});
    char* thread_pointer = nullptr;
    asm("movq %%fs:0, %0" : "=r"(thread_pointer));
    auto* area = reinterpret_cast<struct rseq*>(thread_pointer + __rseq_offset);
    const RestartableSection section{
        .start_ip = address_of(section_start),
        .post_commit_offset = static_cast<uint64_t>(section_end - section_start),
        .abort_ip = address_of(section_abort)};
    raise(SIGSTOP);  // the constructor of TestProcess waits for this
    run_sections(reinterpret_cast<uint64_t*>(&area->rseq_cs), &section, begun_);
  }
  static std::atomic<uint64_t>* map_shared() {
    void* const memory = mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return new (memory) std::atomic<uint64_t>(0);
  }

  std::atomic<uint64_t>* const begun_;
  const TestProcess process_;  // uses begun_
};

TEST(RestartableSequence, AnInjectedCallAbortsTheSectionThatItInterrupts) {
  if (__rseq_size == 0) GTEST_SKIP() << "NOT TESTED: restartable sequences: none is registered";
  const ProcessInSection process;
  constexpr int kRounds = 5;  // in some of them the process may be between two sections
  int interruptions = 0;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(process.begins_again(process.begun())) << "the kernel aborts no section";
    uint64_t begun = 0;
    long pid = 0;
    const Status called = with_injected_calls(process.pid(), [&](InjectedCalls& calls) -> Status {
      begun = process.begun();
      const auto said = calls.call(SYS_getpid, {});
      pid = said.value_or(0);
      return said ? Status{} : failure(said.error());
    });
    if (!called && called.error().errno_value == EOPNOTSUPP) {
      GTEST_SKIP() << "NOT TESTED: injected calls: " << called.error().message;
    }
    if (!called && called.error().errno_value == ETIMEDOUT) continue;  // a busy machine
    ASSERT_TRUE(called) << called.error().message;
    EXPECT_EQ(pid, process.pid());
    ASSERT_TRUE(process.begins_again(begun)) << "it continues in the section, round " << round;
    ++interruptions;
  }
  EXPECT_GT(interruptions, 0) << "the process did not stop in time";
}

#else

TEST(RestartableSequence, AnInjectedCallAbortsTheSectionThatItInterrupts) {
  GTEST_SKIP() << "NOT TESTED: restartable sequences: the C library registers none";
}

#endif

}  // namespace
}  // namespace ppmr
