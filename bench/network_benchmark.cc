// Measures the stream from the slots of a pool to the image store of a target over TCP, without
// FUSE (the network test of Ouyang et al., CCGrid 2011).
//
//   network_benchmark --serve HOST:PORT [--store 2GiB]             receiver and store
//   network_benchmark --target HOST:PORT [--bytes 512MiB] [--writers 1] [--chunk-size 1MiB]
//       [--pool-size 64MiB] [--streams 2] [--benchmark_...]        sender; measures
//
// With --key-file on both sides, chunks are encrypted. With --trusted-fabric in addition, chunks
// are not encrypted. Without credentials there is no authentication.
//
// There are two processes, so that each can run on a node of its own. The clock runs from the first
// chunk handed to the sender until the target has verified the last one, including checksums. After
// each round the files are removed and the next round reuses their memory.

#include <benchmark/benchmark.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/size_option.h"
#include "fuse_target/store/image_tree.h"
#include "fuse_target/store/parking_lot.h"
#include "fuse_target/store/store_memory.h"
#include "rdma_stream/session/receiver.h"
#include "rdma_stream/session/sender.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

struct Options {
  std::string serve_address;
  std::string target_address;
  size_t store_bytes = size_t{2} << 30;
  size_t bytes = size_t{512} << 20;
  size_t chunk_size_bytes = size_t{1} << 20;
  size_t pool_size_bytes = size_t{64} << 20;
  unsigned writers = 1;
  uint32_t streams = 2;
  Credentials credentials;
};

[[noreturn]] void die(const Error& error) {
  fprintf(stderr, "network_benchmark: %s\n", error.message.c_str());
  exit(1);
}

template <typename T>
T value_or_die(Result<T> result) {
  if (!result) die(result.error());
  return std::move(*result);
}

std::shared_ptr<const Security> security_of(Credentials credentials) {
  credentials.insecure =
      credentials.key_file.empty() && credentials.certificate.certificate.empty();
  return value_or_die(Security::load(credentials));
}

int serve(const Options& options) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);  // before any thread exists

  auto listener = value_or_die(security_of(options.credentials)->listener(options.serve_address));
  auto memory = value_or_die(StoreMemory::create(
      {.limit_bytes = options.store_bytes, .ready_bytes = options.store_bytes}, [] {}));
  while (memory->counters().ready_bytes < options.store_bytes) usleep(10'000);
  const ImageStorage storage{*memory};
  ParkingLot parking([](pid_t) { return false; });
  {
    ImageTree tree(storage, parking);
    ReceiverOptions receiver_options;
    receiver_options.target_name = "network_benchmark";
    receiver_options.trusted_fabric = options.credentials.trusted_fabric;
    Receiver receiver(receiver_options, std::move(listener), tree);
    printf("listening\n");
    fflush(stdout);
    int signal = 0;
    sigwait(&stop, &signal);
    parking.close();
  }
  return 0;
}

// The sending half. All rounds use one checkpoint.
class Source {
 public:
  explicit Source(const Options& options)
      : options_(options),
        pool_(value_or_die(BufferPool::create(options.pool_size_bytes, options.chunk_size_bytes))),
        connector_(value_or_die(security_of(options.credentials)
                                    ->connector(options.target_address, PeerRole::kSource))) {
    SenderOptions sender;
    sender.stream_count = options.streams;
    sender.source_name = "network_benchmark";
    sender.trusted_fabric = options.credentials.trusted_fabric;
    sender_ = value_or_die(Sender::open(sender, *pool_, *connector_, {}));
    for (uint32_t slot = 0; slot < pool_->slot_count(); ++slot) {
      const auto payload = pool_->payload(slot);
      for (size_t i = 0; i < payload.size(); ++i) {
        payload[i] = static_cast<std::byte>((i * 31 + slot) >> 3);
      }
    }
    wire::Claim claim;
    claim.node = checkpoint_ = ++last_node_;
    claim.name = "round-" + std::to_string(getpid());
    if (auto claimed = sender_->claim(claim); !claimed) die(claimed.error());
    if (auto made = make("marker"); made) {
      marker_ = *made;
    } else {
      die(made.error());
    }
  }

  // Returns the seconds from the first chunk until the last chunk is verified.
  Result<double> round() {
    std::vector<std::shared_ptr<FileStream>> files;
    for (unsigned i = 0; i < options_.writers; ++i) {
      const auto node = make("file-" + std::to_string(i));
      if (!node) return failure(node.error());
      files.push_back(std::make_shared<FileStream>(*node, error_));
    }
    const auto began = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> writers;
      for (auto& file : files) writers.emplace_back([this, &file] { write(file); });
    }
    for (auto& file : files) {
      if (auto drained = file->drain(nullptr); !drained) return failure(drained.error());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    for (unsigned i = 0; i < files.size(); ++i) {
      if (auto closed = sender_->send(wire::Closed{files[i]->node(), file_bytes()}); !closed) {
        return failure(closed.error());
      }
      wire::Remove remove;
      remove.parent = checkpoint_;
      remove.name = "file-" + std::to_string(i);
      if (auto removed = sender_->send(remove); !removed) return failure(removed.error());
      if (auto forgotten = sender_->send(wire::Forget{files[i]->node()}); !forgotten) {
        return failure(forgotten.error());
      }
    }
    // Waits until the target has freed the memory of this round for the next round.
    if (auto applied = sender_->await_applied(marker_, {}); !applied)
      return failure(applied.error());
    return took.count();
  }

  uint64_t bytes_per_round() const { return file_bytes() * options_.writers; }
  PoolCounters pool_counters() const { return pool_->counters(); }

 private:
  uint64_t file_bytes() const {
    return options_.bytes / options_.writers / options_.chunk_size_bytes *
           options_.chunk_size_bytes;
  }

  Result<uint64_t> make(const std::string& name) {
    wire::Make make;
    make.parent = checkpoint_;
    make.node = ++last_node_;
    make.type = wire::NodeType::kFile;
    make.name = name;
    if (auto sent = sender_->send(make); !sent) return failure(sent.error());
    return make.node;
  }

  void write(const std::shared_ptr<FileStream>& file) {
    for (uint64_t offset = 0; offset < file_bytes() && !error_->failed();) {
      SlotLease lease = pool_->acquire(std::chrono::milliseconds(100));
      if (!lease) {
        if (auto alive = sender_->status(); !alive) error_->set(alive.error());
        continue;
      }
      const auto length = static_cast<uint32_t>(options_.chunk_size_bytes);
      sender_->announce(file->cut(std::move(lease), 0, length, offset));
      offset += length;
    }
  }

  const Options options_;
  // The sender uses the pool and the connector, so it is destroyed before them.
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<Connector> connector_;
  const std::shared_ptr<StickyError> error_ = std::make_shared<StickyError>();
  std::unique_ptr<Sender> sender_;
  uint64_t checkpoint_ = 0;
  uint64_t marker_ = 0;  // an empty file, kept for await_applied()
  uint64_t last_node_ = 0;
};

void measure(benchmark::State& state, Source& source) {
  for (auto _ : state) {
    const auto seconds = source.round();
    if (!seconds) {
      state.SkipWithError(seconds.error().message.c_str());
      return;
    }
    state.SetIterationTime(*seconds);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(source.bytes_per_round()));
  const PoolCounters pool = source.pool_counters();
  state.counters["pool_waits"] = static_cast<double>(pool.waits);
  state.counters["slots"] = static_cast<double>(pool.slots);
}

}  // namespace
}  // namespace ppmr

int main(int argc, char** argv) {
  using namespace ppmr;
  spdlog::set_level(spdlog::level::warn);
  benchmark::Initialize(&argc, argv);  // removes Google Benchmark's options from argv
  Options options;
  CLI::App app("The stream from pool to image store, without FUSE");
  auto* serve_address = app.add_option("--serve", options.serve_address, "HOST:PORT to listen on");
  auto* target_address =
      app.add_option("--target", options.target_address, "HOST:PORT of a --serve process");
  serve_address->excludes(target_address);
  add_size_option(app, "--store", options.store_bytes, "memory for images");
  add_size_option(app, "--bytes", options.bytes, "bytes of one round");
  add_size_option(app, "--chunk-size", options.chunk_size_bytes, "bytes of a slot");
  add_size_option(app, "--pool-size", options.pool_size_bytes, "memory for bytes in flight");
  app.add_option("--writers", options.writers, "threads that fill slots, each with its own file")
      ->check(CLI::Range(1u, 64u));
  app.add_option("--streams", options.streams, "data connections")
      ->check(CLI::Range(1u, wire::kStreamsMax));
  add_credential_options(app, options.credentials);
  CLI11_PARSE(app, argc, argv);
  if (!options.serve_address.empty()) return serve(options);
  if (options.target_address.empty()) {
    fprintf(stderr, "network_benchmark: --serve or --target is required, see --help\n");
    return 2;
  }
  Source source(options);
  benchmark::RegisterBenchmark("network", [&](benchmark::State& state) { measure(state, source); })
      ->UseManualTime()
      ->Iterations(1);
  if (benchmark::RunSpecifiedBenchmarks() == 0) return 1;
  return 0;
}
