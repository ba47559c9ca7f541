// Measures what a job of N nodes costs at its home, the agent of the host where the job was
// started. The other agents do not run here; `message` measures one message to an agent over
// loopback.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "jobs/agent/home_jobs.h"
#include "jobs/agent/peers.h"
#include "jobs/agent/requests.h"
#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr const char* kHome = "node00000";
constexpr const char* kJob = "0123abcd";

const std::string& directory() {
  static const std::string path = [] {
    const auto made = std::filesystem::temp_directory_path() / fmt::format("jobs-{}", getpid());
    std::filesystem::create_directory(made);
    return made.string();
  }();
  return path;
}

// Returns a job with N nodes and one spare.
JobRecord job_of(unsigned count) {
  JobRecord job{.id = kJob,
                .user = {.uid = 1000, .gid = 100, .groups = {100}},
                .token = std::string(32, 'a'),
                .launcher = identify_self(),
                .boot_id = read_boot_id(),
                .port_address = "10.1.0.1"};
  const uint32_t first = parse_address_range("10.1.0.0/16")->first + 1;
  for (unsigned i = 0; i < count; ++i) {
    const std::string name = fmt::format("node{:05}", i);
    job.hosts.push_back({.name = name});
    job.nodes.push_back({.name = name, .address = format_address(first + i), .host = name});
  }
  job.hosts.push_back({.name = "spare", .state = HostState::kSpare});
  return job;
}

unsigned count_of(const benchmark::State& state) { return static_cast<unsigned>(state.range(0)); }

HomeJobs home_of(unsigned count) {
  const std::string records = directory() + "/records";
  const JobRecord job = job_of(count);
  (void)RecordFiles::open(records)->write(job.id, to_json(job));
  // The hosts answer at once.
  const auto ask = [](const std::string&, const json&, std::chrono::milliseconds) {
    return Result<json>(json{{"ok", true}, {"pool", to_json(PoolReport{})}});
  };
  return {HomeOptions{.host = kHome, .addresses = *parse_address_range("10.1.0.0/16"), .ask = ask},
          *RecordFiles::open(records)};
}

// Makes the message for one node, which the home sends N times.
void join_message(benchmark::State& state) {
  const JobRecord job = job_of(count_of(state));
  const std::string hosts_text = job.hosts_text();
  size_t bytes = 0;
  for (auto _ : state) {
    const json request =
        to_request(host_request::Join{.spec = to_json(job.spec_of(0, kHome, hosts_text))});
    bytes = request.dump().size();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}

// Measures the periodic work of the home, which does it once a second.
void tend(benchmark::State& state) {
  HomeJobs home = home_of(count_of(state));
  for (auto _ : state) home.tend();
}

// Measures the answer to a host that asks for the place of its node. Each host asks every ten
// seconds.
void place(benchmark::State& state) {
  HomeJobs home = home_of(count_of(state));
  for (auto _ : state) benchmark::DoNotOptimize(home.place(kJob, 0, kHome));
}

// Measures the two changes of the job's record that a move makes.
void reserve_and_settle(benchmark::State& state) {
  HomeJobs home = home_of(count_of(state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(home.reserve(kJob, 0, kHome, ""));
    benchmark::DoNotOptimize(
        home.settle({.job = kJob, .index = 0, .from = kHome, .moved = false, .error = "no"}));
  }
}

// Measures the answer to `ppmr job status` on another host.
void status(benchmark::State& state) {
  const HomeJobs home = home_of(count_of(state));
  size_t bytes = 0;
  for (auto _ : state) {
    bytes = json(home.views(0)).dump().size();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}

// Sends one small message and receives its answer, each time on a new connection. The measured time
// includes both sides.
void message(benchmark::State& state) {
  PeerOptions options;
  options.credentials.key_file = directory() + "/key";
  if (!std::filesystem::exists(options.credentials.key_file)) {
    (void)create_key_file(options.credentials.key_file);
  }
  {
    const std::string free = (*tcp_listener("127.0.0.1:0"))->address();
    options.port = static_cast<uint16_t>(std::stoi(free.substr(free.rfind(':') + 1)));
  }
  const auto server = PeerServer::create(
      options.credentials, fmt::format("127.0.0.1:{}", options.port), [](const json&) {
        return json{{"ok", true}, {"host", kHome}, {"moving_to", ""}};
      });
  const json request = to_request(host_request::Place{.job = kJob, .index = 0, .asker = kHome});
  for (auto _ : state) {
    const auto answer = ask_peer(options, "127.0.0.1", request, std::chrono::seconds(10));
    if (!answer) return state.SkipWithError(answer.error().message.c_str());
    (*server)->tidy();
  }
}

constexpr int64_t kNodesMin = 10, kNodesMax = 10'000;

BENCHMARK(join_message)->RangeMultiplier(10)->Range(kNodesMin, kNodesMax);
BENCHMARK(tend)->RangeMultiplier(10)->Range(kNodesMin, kNodesMax);
BENCHMARK(place)->RangeMultiplier(10)->Range(kNodesMin, kNodesMax);
BENCHMARK(reserve_and_settle)->RangeMultiplier(10)->Range(kNodesMin, kNodesMax);
BENCHMARK(status)->RangeMultiplier(10)->Range(kNodesMin, kNodesMax);
BENCHMARK(message)->MeasureProcessCPUTime()->UseRealTime();

}  // namespace
}  // namespace ppmr

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  std::error_code error;
  std::filesystem::remove_all(ppmr::directory(), error);
}
