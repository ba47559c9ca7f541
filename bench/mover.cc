// Measures the stream between two machines without mounts: from a source's pool into a target's
// registered memory, over RDMA or TCP. Uses ppmr's Sender, Receiver and movers, and a sink that
// discards all bytes. Compare the result with perftest's ib_read_bw.
//
//   mover target ADDRESS:PORT       receives until SIGTERM; prints its CPU time and counters
//   mover source ADDRESS:PORT --chunk-size N --streams N --transport verbs|tcp --seconds S
//
// Each prints one JSON object.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "buffer_pool/buffer_pool.h"
#include "daemon/command_line/size_option.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "rdma_stream/session/receiver.h"
#include "rdma_stream/session/sender.h"
#include "rdma_stream/verbs/verbs_fabric.h"
#include "rdma_stream/verbs/verbs_source.h"
#include "rdma_stream/verbs/verbs_target.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRegionBytes = size_t{64} << 20;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// All chunks land in one region, at their file offset modulo the region's size.
class DiscardSink final : public Sink {
 public:
  DiscardSink() : memory_(std::move(MappedMemory::create(kRegionBytes).value())) {
    MappedMemory::touch(memory_.bytes());
  }
  std::span<std::byte> memory() const { return memory_.bytes(); }

  void session_opened(SessionId, const std::string&, const std::string&) override {}
  void session_ended(SessionId, const std::string&) override {}
  Status claim(SessionId, const wire::Claim&) override { return {}; }
  Status make(SessionId, const wire::Make&) override { return {}; }
  Status remove(SessionId, const wire::Remove&) override { return {}; }
  Status rename(SessionId, const wire::Rename&) override { return {}; }
  Status set_attributes(SessionId, const wire::SetAttributes&) override { return {}; }
  Status truncate(SessionId, const wire::Truncate&) override { return {}; }
  Status punch_hole(SessionId, const wire::PunchHole&) override { return {}; }
  Status zeros(SessionId, const wire::Zeros&) override { return {}; }
  Status opened_for_write(SessionId, const wire::OpenedForWrite&) override { return {}; }
  Status closed(SessionId, const wire::Closed&) override { return {}; }
  Status forget(SessionId, const wire::Forget&) override { return {}; }
  Status announced(NodeKey, uint64_t, uint32_t) override { return {}; }
  Result<Landing> reserve(NodeKey file, uint64_t offset, uint32_t length) override {
    Landing landing;
    landing.file = file;
    landing.offset = offset;
    landing.length = length;
    // Chunks in flight do not overlap in the region, because the pool is no larger than the region.
    landing.pieces[0] = {memory_.bytes().data() + offset % kRegionBytes, length, 0, 0};
    landing.piece_count = 1;
    return landing;
  }
  Status land(const Landing&, uint64_t) override { return {}; }
  void abandon(const Landing&, const Error&) override {}
  void abandon_announced(NodeKey, uint64_t, uint32_t, const Error&) override {}
  Result<size_t> read(NodeKey, uint64_t, std::span<std::byte>) override { return size_t{0}; }
  Status manifest_entry(SessionId, const wire::ManifestEntry&) override { return {}; }
  Status seal(SessionId, const wire::Seal&) override { return {}; }
  Status abandon_checkpoint(SessionId, const wire::Abandon&) override { return {}; }
  Status seal_refused(SessionId, const wire::SealRefused&) override { return {}; }
  wire::Space space() const override { return {uint64_t{1} << 40, uint64_t{1} << 40}; }

 private:
  const MappedMemory memory_;
};

int report_error(const Error& error) {
  std::fprintf(stderr, "mover: %s\n", error.message.c_str());
  return 1;
}

int run_target(const std::string& address) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  DiscardSink sink;
  ReceiverOptions options;
  const auto fabric = make_verbs_fabric(kRegionBytes);
  auto verbs = VerbsTarget::create(*fabric, {}, 1);
  if (verbs) {
    (*verbs)->region_mapped(0, sink.memory());
    options.transport.verbs = verbs->get();
  } else {
    options.transport.why_no_verbs = verbs.error().message;
  }
  auto listener = tcp_listener(address);
  if (!listener) return report_error(listener.error());
  nlohmann::json result;
  {
    Receiver receiver(options, std::move(*listener), sink);
    int signal = 0;
    sigwait(&signals, &signal);
  }
  result["cpu_s"] = cpu_seconds();
  if (verbs) {
    const VerbsTraffic& traffic = (*verbs)->traffic();
    result["bytes_read"] = traffic.bytes_read.load();
    result["completions_by_poll"] = traffic.completions_by_poll.load();
    result["completions_by_event"] = traffic.completions_by_event.load();
    (*verbs)->close();
  }
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

struct SourceFlags {
  std::string address;
  size_t chunk_size_bytes = 1 << 20;
  size_t pool_size_bytes = kRegionBytes;  // the default of `ppmr source`
  uint32_t streams = 2;
  std::string transport = "verbs";
  double seconds = 3;
};

int run_source(const SourceFlags& flags) {
  auto pool =
      BufferPool::create(std::min(flags.pool_size_bytes, kRegionBytes), flags.chunk_size_bytes);
  if (!pool) return report_error(pool.error());
  auto connector = tcp_connector(flags.address);
  if (!connector) return report_error(connector.error());
  const auto mode = parse_transport_mode(flags.transport);
  if (!mode) return report_error(mode.error());
  SenderOptions options;
  options.stream_count = flags.streams;
  options.source_name = "mover";
  SourceTransport transport;
  transport.mode = *mode;
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<VerbsSource> verbs;
  if (*mode != TransportMode::kTcp) {
    fabric = make_verbs_fabric((*pool)->memory().size());
    auto opened = VerbsSource::create(*fabric, {});
    if (!opened) return report_error(opened.error());
    verbs = std::move(*opened);
  }
  transport.verbs = verbs.get();
  options.transport = transport;
  auto sender = Sender::open(options, **pool, **connector, {});
  if (!sender) return report_error(sender.error());

  const auto error = std::make_shared<StickyError>();
  const auto file = std::make_shared<FileStream>(1, error);
  const auto slot_bytes = static_cast<uint32_t>(flags.chunk_size_bytes);
  uint64_t offset = 0;
  // The warm-up, which is not measured, moves as many bytes as the pool holds.
  Clock::time_point start;
  uint64_t start_bytes = 0;
  double start_cpu = 0;
  bool warm = false;
  for (;;) {
    if (!warm && offset >= (*pool)->memory().size()) {
      if (auto drained = file->drain(nullptr); !drained) return report_error(drained.error());
      warm = true;
      start = Clock::now();
      start_bytes = offset;
      start_cpu = cpu_seconds();
    }
    if (warm && Clock::now() - start > std::chrono::duration<double>(flags.seconds)) break;
    SlotLease lease = (*pool)->acquire(std::chrono::milliseconds(5000));
    if (!lease || error->failed()) return report_error({EIO, "no slot became free for 5 s"});
    (*sender)->announce(file->cut(std::move(lease), 0, slot_bytes, offset));
    offset += slot_bytes;
  }
  if (auto drained = file->drain(nullptr); !drained) return report_error(drained.error());
  const std::chrono::duration<double> time = Clock::now() - start;
  const uint64_t bytes = offset - start_bytes;
  const nlohmann::json result = {
      {"transport", to_string((*sender)->counters().transport)},
      {"chunk_size_bytes", flags.chunk_size_bytes},
      {"streams", flags.streams},
      {"bytes", bytes},
      {"seconds", time.count()},
      {"bytes_per_s", static_cast<double>(bytes) / time.count()},
      {"cpu_s_per_gib", (cpu_seconds() - start_cpu) / static_cast<double>(bytes) * (1 << 30)}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace ppmr

int main(int argc, char** argv) {
  // Logs errors only, because standard output is for the result.
  spdlog::set_level(spdlog::level::err);
  CLI::App app("ppmr's stream between two machines, without mounts");
  app.require_subcommand(1);
  std::string listen;
  ppmr::SourceFlags flags;
  auto* target = app.add_subcommand("target", "Receive and discard bytes until SIGTERM");
  target->add_option("ADDRESS", listen, "HOST:PORT to listen on")->required();
  auto* source = app.add_subcommand("source", "Send for some seconds");
  source->add_option("ADDRESS", flags.address, "HOST:PORT of the target")->required();
  ppmr::add_size_option(*source, "--chunk-size", flags.chunk_size_bytes, "bytes of a chunk");
  ppmr::add_size_option(*source, "--pool-size", flags.pool_size_bytes, "at most 64MiB");
  source->add_option("--streams", flags.streams, "queue pairs, or connections");
  source->add_option("--transport", flags.transport, "verbs or tcp");
  source->add_option("--seconds", flags.seconds, "duration after the warm-up");
  CLI11_PARSE(app, argc, argv);
  return target->parsed() ? ppmr::run_target(listen) : ppmr::run_source(flags);
}
