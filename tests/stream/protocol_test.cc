// The protocol under a seeded faulty network: whatever happens to the bytes on their way, nothing
// lost or corrupt is ever reported as success, everything ends in bounded time, and every slot and
// every thread is back afterwards.
//
//   PPMR_SEED=17 bazel test //tests:protocol_test      one seed again (its number is in the
//   failure) PPMR_SEEDS=20000 ...                               more than the usual thousand

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "tests/stream/stream_rig.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeedsUsual = 400;  // each takes ten times as long
constexpr uint64_t kSeedsOverTls = 120;
constexpr int kRunnersAtOnce = 3;  // more would be late for the peer on a slow machine
#else
constexpr uint64_t kSeedsUsual = 1200;
constexpr uint64_t kSeedsOverTls = 300;
constexpr int kRunnersAtOnce = 12;  // a session mostly waits: for delays, outages, time-outs
#endif
constexpr milliseconds kPeerTimeout{400};
// No seed may take longer, whatever happens to it: drains and seals end with the session.
constexpr milliseconds kSeedTimeMax{20'000};

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

// What can happen to a seed, from a quiet network to one on which no session survives.
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
    case 0:  // a few faults, then peace
      options.faults.rates = {rate(0.2), rate(0.3), rate(0.2), rate(0.2), rate(0.2)};
      options.faults.faults_max = 1 + random() % 8;
      break;
    case 1:  // rare faults without end
      options.faults.rates = {rate(0.01), rate(0.05), rate(0.02), rate(0.01), rate(0.02)};
      break;
    case 2:  // outages, with few faults beside them
      options.faults.rates = {0, rate(0.1), rate(0.02), 0, rate(0.01)};
      options.faults.faults_max = 20;
      break;
    default:  // a network that hardly works
      options.faults.rates = {rate(0.1), rate(0.2), rate(0.1), rate(0.1), rate(0.2)};
      break;
  }
  return options;
}

struct Outcome {
  bool succeeded = false;
  std::string error;
  std::string breach;  // empty if all is well
  FaultCounts faults;
  uint64_t reconnections = 0;
  uint64_t pulled_again = 0;
  bool survived_faults = false;
};

// Takes the link away for a time that is shorter or longer than the peers' patience.
class Outages {
 public:
  Outages(FaultyNetwork& network, bool wanted, uint64_t seed) : network_(network) {
    if (wanted) thread_ = std::thread([this, seed] { run(seed); });
  }
  ~Outages() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    network_.set_link(true);
  }

 private:
  void run(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint64_t left = 1 + random() % 3; left > 0 && !done_; --left) {
      sleep(milliseconds(random() % 40));
      network_.set_link(false);
      if (random() % 4 == 0) network_.cut_all();
      const bool too_long = random() % 4 == 0;
      sleep(too_long ? kPeerTimeout * 3 / 2 : milliseconds(random() % (kPeerTimeout.count() / 2)));
      network_.set_link(true);
    }
  }
  void sleep(milliseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end && !done_;) {
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  FaultyNetwork& network_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// Random writes to one file: forwards, backwards, overlapping, small and large.
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
    // fsync said yes: every byte must be there now.
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
      if (outcome.error.empty()) outcome.breach = "an error without a word";
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
  if (rig.sink().chunks_under_way() != 0)
    outcome.breach = "a chunk was neither landed nor abandoned";
  for (const auto& violation : rig.sink().violations()) outcome.breach = "contract: " + violation;
  return outcome;
}

// Ends the process, with the seed's number, when a seed does not end: better than hanging.
class Watchdog {
 public:
  void begin(uint64_t seed) {
    std::lock_guard lock(mutex_);
    running_[seed] = Clock::now();
  }
  void end(uint64_t seed) {
    std::lock_guard lock(mutex_);
    running_.erase(seed);
  }
  void check() {
    std::lock_guard lock(mutex_);
    for (auto& [seed, since] : running_) {
      if (Clock::now() - since < kSeedTimeMax) continue;
      std::fprintf(stderr, "seed %llu hangs: PPMR_SEED=%llu runs it alone\n",
                   static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
      std::abort();
    }
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, Clock::time_point> running_;  // guarded by mutex_
};

void run_seeds(const std::shared_ptr<const Security>& security, uint64_t seeds_usual) {
  spdlog::set_level(spdlog::level::off);
  const uint64_t only_seed = number_from_environment("PPMR_SEED", UINT64_MAX);
  const bool alone = only_seed != UINT64_MAX;
  if (alone) spdlog::set_level(spdlog::level::debug);
  const uint64_t first = alone ? only_seed : 0;
  const uint64_t end = alone ? first + 1 : number_from_environment("PPMR_SEEDS", seeds_usual);

  std::thread([] {}).join();  // a sanitizer starts a thread of its own with the first one
  const size_t threads_before = threads_of_this_process();
  std::atomic<uint64_t> next = first;
  std::atomic<bool> finished = false;
  Watchdog watchdog;
  std::mutex mutex;
  uint64_t succeeded = 0, failed = 0, survived_faults = 0, reconnections = 0, pulled_again = 0;
  FaultCounts faults;
  auto run_some = [&] {
    for (uint64_t seed; (seed = next++) < end;) {
      watchdog.begin(seed);
      const Outcome outcome = run_seed(seed, security);
      watchdog.end(seed);
      std::lock_guard lock(mutex);
      (outcome.succeeded ? succeeded : failed) += 1;
      survived_faults += outcome.survived_faults;
      reconnections += outcome.reconnections;
      pulled_again += outcome.pulled_again;
      faults += outcome.faults;
      EXPECT_EQ(outcome.breach, "") << "PPMR_SEED=" << seed << " runs it again";
      if (alone)
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                    outcome.succeeded ? "succeeded" : outcome.error.c_str());
    }
  };
  std::thread watcher([&] {
    while (!finished) {
      watchdog.check();
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  std::vector<std::thread> runners;
  for (int i = 0; i < kRunnersAtOnce; ++i) runners.emplace_back(run_some);
  for (auto& runner : runners) runner.join();
  finished = true;
  watcher.join();

  std::printf(
      "%llu seeds: %llu succeeded (%llu of them in spite of faults), %llu failed cleanly\n",
      static_cast<unsigned long long>(end - first), static_cast<unsigned long long>(succeeded),
      static_cast<unsigned long long>(survived_faults), static_cast<unsigned long long>(failed));
  std::printf("faults: %s; %llu reconnections, %llu chunks pulled again\n", faults.text().c_str(),
              static_cast<unsigned long long>(reconnections),
              static_cast<unsigned long long>(pulled_again));
  EXPECT_TRUE(eventually([&] { return threads_of_this_process() == threads_before; }))
      << threads_of_this_process() - threads_before << " threads are left";
  if (alone || end < 100) return;
  // A run in which nothing went wrong, or nothing went well, has tested little.
  const uint64_t seeds = end - first;
  EXPECT_GT(survived_faults, seeds / 4);
  EXPECT_GT(failed, seeds / 20);
  EXPECT_GT(reconnections, seeds / 10);
  EXPECT_GT(pulled_again, seeds / 10);
  for (uint64_t kind : {faults.dropped, faults.delayed, faults.cut, faults.reordered,
                        faults.corrupted, faults.outages}) {
    EXPECT_GT(kind, seeds / 10);
  }
}

TEST(Protocol, NeverReportsALostOrCorruptByteAsSuccess) {
  run_seeds(Security::none(), kSeedsUsual);
}

// The control connection's faults hit TLS first: what is damaged, lost or reordered there ends the
// connection, and the session goes on over another one.
TEST(Protocol, NeverReportsALostOrCorruptByteAsSuccessOverTls) {
  SharedKey key;
  key.fill(42);
  run_seeds(std::move(Security::with_shared_key(key).value()), kSeedsOverTls);
}

}  // namespace
}  // namespace ppmr
