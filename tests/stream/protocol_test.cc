// The protocol over a seeded faulty network. Whatever happens to bytes in flight, no lost or
// corrupt byte is reported as success, every operation ends in bounded time, and every slot and
// thread is returned.
//
// Each run takes fresh seeds and prints the first one. To replay one seed:
//   bazel test //tests/stream:protocol_test --test_env=PPMR_SEED=17
// PPMR_SEEDS=1200 runs more seeds than usual (the long form). With both, the seeds are PPMR_SEED
// and its successors.

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "tests/stream/stream_rig.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeeds = 100;  // fewer seeds, because each takes ten times as long
constexpr int kRunners = 3;       // more would exceed the peer timeout on a slow machine
#else
constexpr uint64_t kSeeds = 300;
// Many sessions at once, because a session mostly waits for delays, outages and timeouts.
constexpr int kRunners = 12;
#endif
constexpr milliseconds kPeerTimeout{400};
// The time limit for one seed. Drains and seals end with their session.
constexpr milliseconds kSeedTimeMax{20'000};

std::optional<uint64_t> number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

// Returns the faults of a seed, from a quiet network to a network on which no session survives.
RigOptions rig_options(uint64_t seed, std::mt19937_64& random) {
  RigOptions options;
  options.peer_timeout = kPeerTimeout;
  options.faults.seed = seed;
  options.faults.segment_bytes_max = random() % 2 == 0 ? 64 << 10 : 4 << 10;
  options.faults.delay_max = milliseconds(1 + random() % 30);
  const double scale = options.faults.segment_bytes_max > (4 << 10) ? 1 : 0.2;
  auto rate = [&](double rate_max) {
    return random() % 3 == 0 ? 0 : scale * rate_max * static_cast<double>(random() % 1000) / 1000;
  };
  switch (seed % 4) {
    case 0:  // a few faults, then none
      options.faults.rates = {rate(0.2), rate(0.3), rate(0.2), rate(0.2), rate(0.2)};
      options.faults.faults_max = 1 + random() % 8;
      break;
    case 1:  // rare faults
      options.faults.rates = {rate(0.01), rate(0.05), rate(0.02), rate(0.01), rate(0.02)};
      break;
    case 2:  // outages and a few faults
      options.faults.rates = {0, rate(0.1), rate(0.02), 0, rate(0.01)};
      options.faults.faults_max = 20;
      break;
    default:  // a very bad network
      options.faults.rates = {rate(0.1), rate(0.2), rate(0.1), rate(0.1), rate(0.2)};
      break;
  }
  return options;
}

struct Outcome {
  bool succeeded = false;
  std::string error;
  std::string breach;  // breach of the contract; empty if there is none
  FaultCounts faults;
  uint64_t reconnections = 0;
  uint64_t pulled_again = 0;
  bool survived_faults = false;
};

// Takes the link down, for a shorter or longer time than the peer timeout.
class Outages {
 public:
  Outages(FaultyNetwork& network, bool wanted, uint64_t seed) : network_(network) {
    if (wanted) thread_ = std::thread([this, seed] { run(seed); });
  }
  ~Outages() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    network_.set_link(true);
  }

 private:
  void run(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint64_t left = 1 + random() % 3; left > 0; --left) {
      if (done_within(milliseconds(random() % 40))) return;
      network_.set_link(false);
      if (random() % 4 == 0) network_.cut_all();
      const bool too_long = random() % 4 == 0;
      if (done_within(too_long ? kPeerTimeout * 3 / 2
                               : milliseconds(random() % (kPeerTimeout.count() / 2)))) {
        return;
      }
      network_.set_link(true);
    }
  }
  bool done_within(milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return done_; });
  }

  FaultyNetwork& network_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
  std::thread thread_;
};

// Makes random writes to one file: forwards, backwards, overlapping, small and large.
Status write_file(TestSource& source, TestFile& file, uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint64_t size_max = 1 + random() % (random() % 3 == 0 ? 2'000 : 600'000);
  for (uint64_t writes = 1 + random() % 12; writes > 0; --writes) {
    const uint64_t offset = random() % 3 == 0 ? file.model.size() : random() % size_max;
    const size_t length = 1 + random() % (random() % 2 == 0 ? 500 : 150'000);
    if (auto written = source.write(file, offset, length, random); !written) return written;
    if (random() % 8 == 0) {
      if (auto drained = source.drain(file); !drained) return drained;
    }
  }
  return source.drain(file);
}

std::string difference(const TestFile& file, const std::optional<std::vector<std::byte>>& landed) {
  if (!landed) return file.name + ": not at the target";
  if (*landed == file.model) return {};
  if (landed->size() != file.model.size()) {
    return file.name + ": " + std::to_string(landed->size()) + " bytes instead of " +
           std::to_string(file.model.size());
  }
  const auto at = std::mismatch(landed->begin(), landed->end(), file.model.begin()).first;
  return file.name + ": wrong byte at " + std::to_string(at - landed->begin());
}

Status move_checkpoint(StreamRig& rig, TestSource& source, std::mt19937_64& random,
                       std::string& breach) {
  if (auto claimed = source.claim("checkpoint"); !claimed) return claimed;
  std::vector<TestFile*> files;
  for (uint64_t count = 1 + random() % 4; count > 0; --count) {
    auto file = source.make_file("file-" + std::to_string(count));
    if (!file) return failure(file.error());
    files.push_back(*file);
  }
  std::vector<std::thread> writers;
  std::vector<Status> results(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    writers.emplace_back(
        [&, i, seed = random()] { results[i] = write_file(source, *files[i], seed); });
  }
  for (auto& writer : writers) writer.join();
  for (size_t i = 0; i < files.size(); ++i) {
    if (!results[i]) return results[i];
    // The drain succeeded, so every byte must have landed.
    if (auto wrong = difference(*files[i], rig.sink().content(files[i]->node)); !wrong.empty()) {
      breach = "after a successful drain: " + wrong;
    }
  }
  if (random() % 4 == 0 && !files[0]->model.empty()) {
    std::vector<std::byte> bytes(files[0]->model.size());
    auto count = source.sender().read_back(files[0]->node, 0, bytes, {});
    if (!count) return failure(count.error());
    if (*count != bytes.size() || bytes != files[0]->model) breach = "read back: wrong bytes";
  }
  return source.seal();
}

Outcome run_seed(uint64_t seed, const std::shared_ptr<const Security>& security) {
  std::mt19937_64 random(seed);
  Outcome outcome;
  RigOptions rig_choice = rig_options(seed, random);
  rig_choice.security = security;
  StreamRig rig(rig_choice);
  {
    TestSourceOptions options;
    options.pool_slots = 1 + random() % 8;
    options.stream_count = 1 + static_cast<uint32_t>(random() % 3);
    TestSource source(rig, options);
    Status status = source.opened();
    if (status) {
      Outages outages(rig.network(), seed % 4 == 2, random());
      status = move_checkpoint(rig, source, random, outcome.breach);
      outcome.reconnections = source.sender().counters().reconnections;
    }
    for (const auto& report : rig.receiver().sessions())
      outcome.pulled_again += report.pulled_again;
    outcome.succeeded = status.has_value();
    if (!status) {
      outcome.error = status.error().message;
      const int code = status.error().errno_value;
      if (source.opened() && code != EIO) {
        outcome.breach = "error " + std::to_string(code) + " is not EIO: " + outcome.error;
      }
      if (outcome.error.empty()) outcome.breach = "an error without a message";
    } else {
      if (!rig.sink().sealed(source.checkpoint())) outcome.breach = "sealed, but not at the target";
      for (const TestFile& file : source.files()) {
        if (auto wrong = difference(file, rig.sink().content(file.node)); !wrong.empty()) {
          outcome.breach = "after a successful seal: " + wrong;
        }
      }
    }
    source.close_sender();
    const PoolCounters pool = source.pool().counters();
    if (pool.free != pool.slots) outcome.breach = "slots are missing at the end";
  }
  outcome.faults = rig.network().counts();
  outcome.survived_faults = outcome.succeeded && outcome.faults.faults() > 0;
  rig.end_receiver();
  if (rig.sink().open_sessions() != 0) outcome.breach = "a session was not ended";
  if (rig.sink().chunks_in_flight() != 0)
    outcome.breach = "a chunk was neither landed nor abandoned";
  for (const auto& violation : rig.sink().violations()) outcome.breach = "contract: " + violation;
  return outcome;
}

// Aborts the process with the seed's number when a seed hangs.
class Watchdog {
 public:
  Watchdog() : thread_([this] { run(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void begin(uint64_t seed) {
    std::lock_guard lock(mutex_);
    running_[seed] = Clock::now();
  }
  void end(uint64_t seed) {
    std::lock_guard lock(mutex_);
    running_.erase(seed);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, milliseconds(500), [this] { return done_; })) {
      for (auto& [seed, since] : running_) {
        if (Clock::now() - since < kSeedTimeMax) continue;
        std::fprintf(stderr, "seed %llu hangs: replay it with PPMR_SEED=%llu\n",
                     static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
        std::abort();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Clock::time_point> running_;  // guarded by mutex_
  bool done_ = false;                              // guarded by mutex_
  // Declared last: the thread uses the members above.
  std::thread thread_;
};

void run_seeds(const std::shared_ptr<const Security>& security, uint64_t seeds_usual) {
  const auto given_seed = number_from_environment("PPMR_SEED");
  const auto given_count = number_from_environment("PPMR_SEEDS");
  const uint64_t first = given_seed ? *given_seed : std::random_device{}();
  const uint64_t seeds = given_count.value_or(given_seed ? 1 : seeds_usual);
  const uint64_t end = first + seeds;
  const bool alone = seeds == 1;
  spdlog::set_level(alone ? spdlog::level::debug : spdlog::level::off);
  std::printf("%llu seeds from %llu\n", static_cast<unsigned long long>(seeds),
              static_cast<unsigned long long>(first));

  std::thread([] {}).join();  // when the first thread starts, a sanitizer starts another one
  const size_t threads_before = threads_of_this_process();
  std::atomic<uint64_t> next = first;
  std::optional<Watchdog> watchdog(std::in_place);
  std::mutex mutex;
  uint64_t succeeded = 0, failed = 0, survived_faults = 0, reconnections = 0, pulled_again = 0;
  FaultCounts faults;
  auto run_some = [&] {
    for (uint64_t seed; (seed = next++) < end;) {
      watchdog->begin(seed);
      const Outcome outcome = run_seed(seed, security);
      watchdog->end(seed);
      std::lock_guard lock(mutex);
      (outcome.succeeded ? succeeded : failed) += 1;
      survived_faults += outcome.survived_faults;
      reconnections += outcome.reconnections;
      pulled_again += outcome.pulled_again;
      faults += outcome.faults;
      EXPECT_EQ(outcome.breach, "") << "PPMR_SEED=" << seed << " replays it";
      if (alone)
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                    outcome.succeeded ? "succeeded" : outcome.error.c_str());
    }
  };
  std::vector<std::thread> runners;
  for (int i = 0; i < kRunners; ++i) runners.emplace_back(run_some);
  for (auto& runner : runners) runner.join();
  watchdog.reset();

  std::printf(
      "%llu seeds from %llu: %llu succeeded (%llu of them despite faults), %llu failed cleanly\n",
      static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(succeeded), static_cast<unsigned long long>(survived_faults),
      static_cast<unsigned long long>(failed));
  std::printf("faults: %s; %llu reconnections, %llu chunks pulled again\n", faults.text().c_str(),
              static_cast<unsigned long long>(reconnections),
              static_cast<unsigned long long>(pulled_again));
  EXPECT_TRUE(eventually([&] { return threads_of_this_process() == threads_before; }))
      << threads_of_this_process() - threads_before << " threads are left";
  if (seeds < 100) return;
  // The run must have had enough faults, and enough successes in spite of faults.
  EXPECT_GT(survived_faults, seeds / 4);
  EXPECT_GT(failed, seeds / 20);
  EXPECT_GT(reconnections, seeds / 10);
  EXPECT_GT(pulled_again, seeds / 10);
  for (uint64_t kind : {faults.dropped, faults.delayed, faults.cut, faults.reordered,
                        faults.corrupted, faults.outages}) {
    EXPECT_GT(kind, seeds / 10);
  }
}

TEST(Protocol, NeverReportsALostOrCorruptByteAsSuccess) { run_seeds(Security::none(), kSeeds); }

// Faults on the control connection first reach TLS: damaged, lost or reordered bytes end the
// connection, and the session continues over another connection.
TEST(Protocol, NeverReportsALostOrCorruptByteAsSuccessOverTls) {
  SharedKey key;
  key.fill(42);
  run_seeds(std::move(Security::with_shared_key(key).value()), kSeeds / 4);
}

}  // namespace
}  // namespace ppmr
