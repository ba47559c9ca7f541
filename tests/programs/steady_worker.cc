// A program with many kinds of state, each of which shows whether a move has kept it.
//
// clang-format off
//   memory   N MiB of random words made from a seed; SIGUSR1 requests an audit (a digest, and a
//            comparison of each word with the seed's)
//   output   a numbered line with both clocks every 10 ms, written at the descriptor's offset
//   threads  each walks a chain, one step per millisecond; every line has (steps, state) of each
//   timer    a POSIX timer that ticks every 10 ms
//   child    answers number n over pipes with mix(n) and how many numbers it has answered
//   node     each line contains the node's name (UTS host name)
//   writer   if requested: writes the first word of PAGES_PER_S pages per second, cyclically; an
//            audit
//            checks the expected value of each
// clang-format on
//
// Usage: steady_worker DIR [SIZE_MIB [THREADS [SEED [PAGES_PER_S]]]]
// Writes DIR/output and DIR/audits; creates DIR/ready when everything runs.

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "arithmetic.h"
#include "pipe_child.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr int64_t kLineIntervalNs = 10'000'000;
constexpr int64_t kTickIntervalNs = 10'000'000;
constexpr int64_t kStepIntervalNs = 1'000'000;

volatile sig_atomic_t ticks = 0;
void count_tick(int) { ticks = ticks + 1; }

class Memory {
 public:
  Memory(size_t size_mib, uint64_t seed)
      : word_count_(size_mib * (1 << 20) / sizeof(uint64_t)), seed_(seed) {
    void* at = mmap(nullptr, std::max<size_t>(word_count_, 1) * sizeof(uint64_t),
                    PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap of the memory");
    words_ = static_cast<uint64_t*>(at);
    for (size_t i = 0; i < word_count_; ++i) words_[i] = memory_word(seed_, i);
  }

  // `digest` covers the words in memory, `expected` the words that the seed and the number of
  // writes require. Each audit computes both again.
  struct Audit {
    uint64_t digest = 0, expected = 0, wrong_words = 0;
  };
  Audit audit() {
    std::lock_guard lock(mutex_);
    Audit audit;
    for (size_t i = 0; i < word_count_; ++i) {
      const uint64_t should_be =
          i % kPageWords == 0 ? first_word(i / kPageWords) : memory_word(seed_, i);
      audit.wrong_words += words_[i] != should_be;
      audit.digest = digest_add(audit.digest, words_[i]);
      audit.expected = digest_add(audit.expected, should_be);
    }
    return audit;
  }

  // Writes to the next `count` pages.
  void dirty(size_t count) {
    std::lock_guard lock(mutex_);
    const size_t pages = word_count_ / kPageWords;
    for (; count > 0; --count) {
      const size_t page = dirtied_++ % pages;
      words_[page * kPageWords] = first_word(page);
    }
  }

 private:
  static constexpr size_t kPageWords = 4096 / sizeof(uint64_t);
  // Returns the expected first word. Its seed grows by one with each write to the page.
  uint64_t first_word(size_t page) const {
    const size_t pages = word_count_ / kPageWords;
    const uint64_t rounds = dirtied_ / pages + (page < dirtied_ % pages ? 1 : 0);
    return memory_word(seed_ + rounds, page * kPageWords);
  }

  std::mutex mutex_;
  uint64_t dirtied_ = 0;  // in pages
  size_t word_count_;
  uint64_t seed_;
  uint64_t* words_ = nullptr;
};

// A thread and its chain. The lock makes (steps, state) consistent for the reader.
class Walker {
 public:
  explicit Walker(uint64_t start) : state_(start), thread_([this] { walk(); }) {}
  std::pair<uint64_t, uint64_t> look() {
    std::lock_guard lock(mutex_);
    return {steps_, state_};
  }

 private:
  [[noreturn]] void walk() {
    for (Pace pace(kStepIntervalNs);; pace.wait()) {
      std::lock_guard lock(mutex_);
      state_ = chain_step(state_);
      ++steps_;
    }
  }

  std::mutex mutex_;
  uint64_t steps_ = 0;
  uint64_t state_;
  std::thread thread_;  // declared last: the thread uses the members above
};

void start_timer() {
  struct sigaction action {};
  action.sa_handler = count_tick;
  action.sa_flags = SA_RESTART;
  if (sigaction(SIGRTMIN, &action, nullptr) != 0) die("sigaction");
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGRTMIN;
  timer_t timer;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) die("timer_create");
  const itimerspec every{{0, kTickIntervalNs}, {0, kTickIntervalNs}};
  if (timer_settime(timer, 0, &every, nullptr) != 0) die("timer_settime");
}

[[noreturn]] void dirty_steadily(Memory& memory, uint64_t pages_per_s) {
  const int64_t pages_per_tick =
      static_cast<int64_t>(pages_per_s) * kTickIntervalNs / 1'000'000'000;
  for (Pace pace(kTickIntervalNs);; pace.wait()) memory.dirty(static_cast<size_t>(pages_per_tick));
}

[[noreturn]] void audit_when_asked(Memory& memory, LineFile& audits, sigset_t asked) {
  for (uint64_t number = 1;; ++number) {
    int signal = 0;
    if (sigwait(&asked, &signal) != 0) die("sigwait");
    const int64_t begin = monotonic_ns();
    const Memory::Audit audit = memory.audit();
    audits.line(
        "audit=%lu digest=%016lx expected=%016lx wrong_words=%lu begin_ns=%ld end_ns=%ld node=%s",
        number, audit.digest, audit.expected, audit.wrong_words, begin, monotonic_ns(),
        node_name().c_str());
  }
}

int run(const std::string& directory, size_t size_mib, size_t thread_count, uint64_t seed,
        uint64_t pages_per_s) {
  const PipeChild child;  // created before any thread exists
  Memory memory(size_mib, seed);
  LineFile output(directory + "/output"), audits(directory + "/audits");

  // Threads inherit the signal mask. So only the main thread receives ticks, and only the auditor
  // receives audit requests.
  sigset_t tick_and_audit, audit_only;
  sigemptyset(&audit_only);
  sigaddset(&audit_only, SIGUSR1);
  tick_and_audit = audit_only;
  sigaddset(&tick_and_audit, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &tick_and_audit, nullptr);
  std::thread auditor([&] { audit_when_asked(memory, audits, audit_only); });
  std::thread writer;
  if (pages_per_s > 0) writer = std::thread([&] { dirty_steadily(memory, pages_per_s); });
  std::vector<std::unique_ptr<Walker>> walkers;
  for (size_t i = 0; i < thread_count; ++i) walkers.push_back(std::make_unique<Walker>(i));
  sigset_t tick;
  sigemptyset(&tick);
  sigaddset(&tick, SIGRTMIN);
  pthread_sigmask(SIG_UNBLOCK, &tick, nullptr);
  start_timer();
  { LineFile ready(directory + "/ready"); }

  Pace pace(kLineIntervalNs);
  for (uint64_t number = 1;; ++number) {
    const Answer answer = child.ask(number);
    std::string steps, states;
    for (size_t i = 0; i < walkers.size(); ++i) {
      const auto [count, state] = walkers[i]->look();
      const char* comma = i == 0 ? "" : ",";
      steps += comma + std::to_string(count);
      states += comma + std::to_string(state);
    }
    output.line(
        "line=%lu mono_ns=%ld real_ns=%ld node=%s pid=%d child=%d answer=%lu served=%lu ticks=%d "
        "steps=%s states=%s",
        number, monotonic_ns(), realtime_ns(), node_name().c_str(), getpid(), child.pid,
        answer.value, answer.served, static_cast<int>(ticks), steps.c_str(), states.c_str());
    pace.wait();
  }
}

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  if (argc < 2 || argc > 6) {
    fprintf(stderr, "usage: %s DIR [SIZE_MIB [THREADS [SEED [PAGES_PER_S]]]]\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i, uint64_t otherwise) {
    return i < argc ? strtoull(argv[i], nullptr, 0) : otherwise;
  };
  return ppmr_programs::run(argv[1], number(2, 64), number(3, 4), number(4, 1), number(5, 0));
}
