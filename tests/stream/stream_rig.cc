#include "tests/stream/stream_rig.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

}  // namespace

StreamRig::StreamRig(RigOptions options)
    : options_(std::move(options)), network_(options_.faults), sink_(options_.sink) {
  std::unique_ptr<Listener> listener = options_.security->secure(
      options_.tcp ? std::move(tcp_listener("127.0.0.1:0").value()) : network_.listen());
  ReceiverOptions receiver;
  receiver.peer_timeout = options_.peer_timeout;
  receiver.target_name = "target";
  receiver.on_event = options_.on_event;
  receiver.trusted_fabric = options_.target_trusts_fabric;
  if (options_.verbs) {
    verbs_ = std::make_unique<FaultyVerbs>(options_.verbs->fabric);
    verbs_source_ = std::move(VerbsSource::create(verbs_->source(), {}).value());
    verbs_target_ = std::move(VerbsTarget::create(verbs_->target(), {}, 1).value());
    verbs_target_->region_mapped(0, sink_.memory());
    receiver.transport = {options_.verbs->target, verbs_target_.get(), ""};
  }
  receiver_ = std::make_unique<Receiver>(receiver, std::move(listener), sink_);
}

StreamRig::~StreamRig() = default;

std::unique_ptr<Connector> StreamRig::connector() {
  std::unique_ptr<Connector> plain =
      options_.tcp ? std::move(tcp_connector(receiver_->address()).value()) : network_.connector();
  if (options_.wiretap != nullptr) plain = options_.wiretap->tap(std::move(plain));
  return options_.security->secure(std::move(plain));
}

TestSource::TestSource(StreamRig& rig, TestSourceOptions options)
    : options_(std::move(options)),
      pool_(std::move(BufferPool::create(options_.pool_slots * options_.chunk_size_bytes,
                                         options_.chunk_size_bytes)
                          .value())),
      connector_(rig.connector()) {
  SenderOptions sender;
  sender.stream_count = options_.stream_count;
  sender.peer_timeout = rig.options().peer_timeout;
  sender.source_name = options_.name;
  sender.compression = options_.compression;
  sender.trusted_fabric = rig.options().source_trusts_fabric;
  if (rig.options().verbs) {
    sender.transport = SourceTransport{rig.options().verbs->source, rig.verbs_source(), ""};
  }
  auto opened = Sender::open(sender, *pool_, *connector_, options_.events);
  if (opened) {
    sender_ = std::move(*opened);
  } else {
    opened_ = failure(opened.error());
  }
}

TestSource::~TestSource() = default;

Status TestSource::claim(const std::string& name) {
  wire::Claim claim;
  claim.node = checkpoint_ = ++last_node_;
  claim.name = checkpoint_name_ = name;
  return sender_->claim(claim);
}

Result<TestFile*> TestSource::make_file(const std::string& name) {
  TestFile& file = files_.emplace_back();
  file.node = ++last_node_;
  file.name = name;
  file.stream = std::make_shared<FileStream>(file.node, error_);
  wire::Make make;
  make.parent = checkpoint_;
  make.node = file.node;
  make.type = wire::NodeType::kFile;
  make.name = name;
  if (auto made = sender_->send(make); !made) return failure(made.error());
  return &file;
}

Status TestSource::write(TestFile& file, uint64_t offset, size_t length, std::mt19937_64& random) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, length - i));
  }
  return write(file, offset, bytes);
}

Status TestSource::write(TestFile& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    SlotLease lease;
    while (!(lease = pool_->acquire(milliseconds(20)))) {
      if (error_->failed()) return error_->status();
      if (auto alive = sender_->status(); !alive) return alive;
    }
    // Varies the place of the bytes in the slot, as FUSE requests do.
    const auto slot_offset = static_cast<uint32_t>(offset % 64);
    const size_t length = std::min(bytes.size(), options_.chunk_size_bytes - slot_offset);
    std::copy_n(bytes.begin(), length, lease.payload().begin() + slot_offset);
    if (file.model.size() < offset + length) file.model.resize(offset + length);
    std::copy_n(bytes.begin(), length, file.model.begin() + static_cast<ptrdiff_t>(offset));
    sender_->announce(
        file.stream->cut(std::move(lease), slot_offset, static_cast<uint32_t>(length), offset));
    offset += length;
    bytes = bytes.subspan(length);
  }
  return error_->status();
}

Status TestSource::drain(const TestFile& file, std::function<bool()> interrupted) const {
  return file.stream->drain(interrupted);
}

Status TestSource::close(const TestFile& file) {
  return sender_->send(wire::Closed{file.node, file.model.size()});
}

Status TestSource::seal() {
  for (TestFile& file : files_) {
    if (auto drained = drain(file); !drained) return drained;
    if (auto closed = close(file); !closed) return closed;
  }
  wire::ManifestEntry top;
  top.checkpoint = top.node = checkpoint_;
  top.name = checkpoint_name_;
  if (auto sent = sender_->send(top); !sent) return sent;
  for (TestFile& file : files_) {
    wire::ManifestEntry entry;
    entry.checkpoint = checkpoint_;
    entry.node = file.node;
    entry.parent = checkpoint_;
    entry.type = wire::NodeType::kFile;
    entry.size_bytes = file.model.size();
    entry.digest = file.stream->digest();
    entry.name = file.name;
    if (auto sent = sender_->send(entry); !sent) return sent;
  }
  wire::Seal seal;
  seal.checkpoint = checkpoint_;
  seal.entry_count = files_.size() + 1;
  return sender_->seal(seal);
}

bool eventually(const std::function<bool()>& condition, milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

bool thread_sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);  // "TID (NAME) STATE ..."
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") S") == 0;
}

size_t threads_of_this_process() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace ppmr
