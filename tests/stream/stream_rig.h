// Both halves of the stream in one process: a receiver with a sink in memory, and sources that keep
// a model of their files. A faulty network or TCP on loopback connects them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/session/receiver.h"
#include "rdma_stream/session/sender.h"
#include "rdma_stream/verbs/verbs_source.h"
#include "rdma_stream/verbs/verbs_target.h"
#include "tests/stream/faulty_transport.h"
#include "tests/stream/faulty_verbs.h"
#include "tests/stream/memory_sink.h"
#include "tests/stream/wiretap.h"

namespace ppmr {

// RDMA on both sides.
struct RigVerbs {
  FaultyVerbsOptions fabric;
  TransportMode source = TransportMode::kAuto;
  TransportMode target = TransportMode::kAuto;
};

struct RigOptions {
  bool tcp = false;
  std::shared_ptr<const Security> security = Security::none();
  std::optional<RigVerbs> verbs;
  bool source_trusts_fabric = false;
  bool target_trusts_fabric = false;
  Wiretap* wiretap = nullptr;  // taps the connections of the sources
  FaultOptions faults;
  MemorySinkOptions sink;
  std::chrono::milliseconds peer_timeout{5000};
  OnConnectionEvent on_event;  // passed to the receiver
};

// Threads: one, except where its members allow more.
class StreamRig {
 public:
  explicit StreamRig(RigOptions options = {});
  ~StreamRig();

  const RigOptions& options() const { return options_; }
  FaultyNetwork& network() { return network_; }
  MemorySink& sink() { return sink_; }
  Receiver& receiver() { return *receiver_; }
  std::unique_ptr<Connector> connector();
  void end_receiver() { receiver_.reset(); }
  FaultyVerbs& verbs() { return *verbs_; }
  VerbsTarget& verbs_target() { return *verbs_target_; }
  VerbsSource* verbs_source() { return verbs_source_.get(); }

 private:
  const RigOptions options_;
  FaultyNetwork network_;
  MemorySink sink_;
  std::unique_ptr<FaultyVerbs> verbs_;
  std::unique_ptr<VerbsTarget> verbs_target_;
  std::unique_ptr<VerbsSource> verbs_source_;
  std::unique_ptr<Receiver> receiver_;  // declared last: it ends before the objects that it uses
};

// One file of a source: its chunks in flight and its expected content.
struct TestFile {
  uint64_t node = 0;
  std::string name;
  std::shared_ptr<FileStream> stream;
  std::vector<std::byte> model;  // only the file's writer changes it
};

struct TestSourceOptions {
  std::string name = "source";
  size_t pool_slots = 8;
  size_t chunk_size_bytes = kChunkSizeMinBytes;
  uint32_t stream_count = 2;
  SenderEvents events;
  CompressionMethod compression;
};

// A source without a mount. Threads: one, but each file may have its own writer thread.
class TestSource {
 public:
  TestSource(StreamRig& rig, TestSourceOptions options);
  ~TestSource();

  // Returns the result of Sender::open. After an error, call no other member.
  Status opened() const { return opened_; }
  Sender& sender() { return *sender_; }
  BufferPool& pool() { return *pool_; }
  const std::shared_ptr<StickyError>& checkpoint_error() const { return error_; }
  void close_sender() { sender_.reset(); }

  // Claims a checkpoint for the files.
  Status claim(const std::string& name);
  uint64_t checkpoint() const { return checkpoint_; }
  Result<TestFile*> make_file(const std::string& name);
  // Writes random bytes, in several chunks if necessary.
  Status write(TestFile& file, uint64_t offset, size_t length, std::mt19937_64& random);
  Status write(TestFile& file, uint64_t offset, std::span<const std::byte> bytes);
  Status drain(const TestFile& file, std::function<bool()> interrupted = nullptr) const;
  Status close(const TestFile& file);
  // Drains and closes all files, then seals the checkpoint.
  Status seal();
  std::deque<TestFile>& files() { return files_; }

 private:
  const TestSourceOptions options_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<Connector> connector_;
  const std::shared_ptr<StickyError> error_ = std::make_shared<StickyError>();
  std::unique_ptr<Sender> sender_;
  Status opened_;
  std::deque<TestFile> files_;
  std::string checkpoint_name_;
  uint64_t checkpoint_ = 0;
  uint64_t last_node_ = 0;
};

// Polls until the condition holds. Returns false after `patience`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds patience = std::chrono::milliseconds(20'000));

size_t threads_of_this_process();
// Returns true if the thread sleeps in the kernel, so it has no work at this moment.
bool thread_sleeps(pid_t thread);

}  // namespace ppmr
