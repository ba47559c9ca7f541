// Reads the memory of processes into slots, and sends it in chunks like written bytes.
//
// Two threads send a file. One thread, the first pass, sends all blocks in the order of the file.
// The other thread sends the blocks that readers at the target wait for (see wanted_blocks.h). It
// holds a slot in reserve, because the first pass keeps the pool full. While blocks are wanted, the
// first pass leaves the free slots to the other thread.
//
// Where there are many processors, further threads help the first pass: each takes the next blocks
// that no thread has taken. So the bytes arrive nearly in the order of the file.
//
// Zero pages are not sent: they stay holes, which read as zeros, and a message tells the target
// where they are, so that no reader waits for them.
#include "fuse_source/frozen_memory.h"

#include <sys/prctl.h>

#include <cstring>
#include <thread>
#include <utility>

#include "base/without_exceptions.h"
#include "fuse_source/nonzero_parts.h"
#include "fuse_source/wanted_blocks.h"

namespace ppmr {
namespace {

// The longest wait of a pass for another slot, for a further part of its slot. Trees that move at
// the same time each hold a slot: if they hold all slots, no tree gets another one. After this time
// the pass sends the remaining parts as one chunk, with the zero pages between them.
constexpr std::chrono::milliseconds kPatienceForParts{100};
// Zeros of consecutive slots share one message, up to this many bytes. Reading so many bytes takes
// a few milliseconds, and a reader at the target may wait for the message.
constexpr uint64_t kZerosMaxBytes = uint64_t{16} << 20;

// Sends memory on one thread: send_all() sends all blocks, send_wanted() the wanted ones. Threads:
// one.
class MemoryPass {
 public:
  MemoryPass(const MemorySlots& slots, SourceNodePointer node, const FrozenMemory::Reader& reader,
             WantedBlocks& blocks, uint64_t file_offset)
      : slots_(slots),
        node_(std::move(node)),
        reader_(reader),
        blocks_(blocks),
        file_offset_(file_offset) {}

  Status send_all();
  // Returns after a call of blocks_.finish(). `reserve` is empty if the pool has no slot to
  // reserve. `keep_reserve`: whether to hold a slot also while no block is wanted.
  Status send_wanted(SlotLease reserve, bool keep_reserve);

 private:
  Status send(SlotLease& lease, const WantedBlocks::Part& taken,
              std::chrono::milliseconds patience_for_parts);
  Status send_chunk(SlotLease lease, std::span<const std::byte> bytes, uint64_t offset);
  Status add_zeros(uint64_t begin, uint64_t end);
  Status send_zeros();

  const MemorySlots& slots_;
  const SourceNodePointer node_;
  const FrozenMemory::Reader& reader_;
  WantedBlocks& blocks_;
  const uint64_t file_offset_;  // of the first block; the other offsets of this class count from it
  std::vector<std::span<const std::byte>> parts_;
  uint64_t zeros_begin_ = 0;  // [zeros_begin_, zeros_end_): zeros that are not sent yet
  uint64_t zeros_end_ = 0;
};

// The blocks of a file, and the thread that sends the wanted blocks. The destructor ends the
// thread.
class WantedSender {
 public:
  WantedSender(const MemorySlots& slots, SourceNodePointer node, const FrozenMemory& memory)
      : slots_(slots),
        node_(std::move(node)),
        blocks_(memory.bytes),
        file_offset_(memory.file_offset) {}
  ~WantedSender() { finish(); }

  WantedBlocks& blocks() { return blocks_; }
  // From now on the target can request blocks. Errors: EBUSY.
  Status admit_wants();
  // Throws std::system_error when the thread cannot be started.
  void start(const FrozenMemory::Reader& reader);
  // Ends the thread and returns its error.
  Status finish();

 private:
  void run(const FrozenMemory::Reader& reader, SlotLease reserve, bool keep_reserve);

  const MemorySlots& slots_;
  const SourceNodePointer node_;
  WantedBlocks blocks_;
  const uint64_t file_offset_;
  bool admits_wants_ = false;
  bool reserves_ = false;
  Status status_;  // the result of the thread
  std::thread thread_;
};

// The threads that help the first pass. The destructor ends them when all blocks are taken, or the
// checkpoint has failed.
class FurtherPasses {
 public:
  FurtherPasses(const MemorySlots& slots, const SourceNodePointer& node, const FrozenMemory& memory,
                WantedBlocks& blocks)
      : slots_(slots), node_(node), memory_(memory), blocks_(blocks) {}
  ~FurtherPasses() { finish(); }

  // Throws std::system_error when a thread cannot be started.
  void start();
  void finish();

 private:
  void run(const FrozenMemory::Reader& reader);

  const MemorySlots& slots_;
  const SourceNodePointer node_;
  const FrozenMemory& memory_;
  WantedBlocks& blocks_;
  std::vector<std::thread> threads_;
};

void FurtherPasses::start() {
  for (const FrozenMemory::Reader& reader : memory_.further_readers) {
    threads_.emplace_back([this, &reader] { run(reader); });
  }
}

void FurtherPasses::run(const FrozenMemory::Reader& reader) {
  (void)::prctl(PR_SET_NAME, kMemoryThread);
  const Status sent = without_exceptions([&] {
    MemoryPass pass(slots_, node_, reader, blocks_, memory_.file_offset);
    return pass.send_all();
  });
  // The other passes find this error in the checkpoint and end.
  if (!sent) node_->checkpoint->error->set(sent.error());
}

void FurtherPasses::finish() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// ---- The thread for wanted blocks ---------------------------------------------------------------

Status WantedSender::admit_wants() {
  const Status begun = slots_.transfers.begin(node_->id, blocks_, file_offset_);
  admits_wants_ = begun.has_value();
  return begun;
}

void WantedSender::start(const FrozenMemory::Reader& reader) {
  reserves_ = slots_.transfers.may_reserve(slots_.pool.slot_count());
  SlotLease reserve;
  if (reserves_) reserve = slots_.pool.try_acquire();
  thread_ = std::thread([this, &reader, reserve = std::move(reserve)]() mutable {
    run(reader, std::move(reserve), reserves_);
  });
}

void WantedSender::run(const FrozenMemory::Reader& reader, SlotLease reserve, bool keep_reserve) {
  status_ = without_exceptions([&] {
    MemoryPass pass(slots_, node_, reader, blocks_, file_offset_);
    return pass.send_wanted(std::move(reserve), keep_reserve);
  });
  if (status_) return;
  // The first pass finds this error in the checkpoint and ends.
  node_->checkpoint->error->set(status_.error());
  blocks_.finish();
}

Status WantedSender::finish() {
  blocks_.finish();
  if (thread_.joinable()) thread_.join();
  if (std::exchange(reserves_, false)) slots_.transfers.drop_reserve();
  if (std::exchange(admits_wants_, false)) slots_.transfers.end(node_->id);
  return status_;
}

// ---- Passes -------------------------------------------------------------------------------------

Status MemoryPass::send_all() {
  SlotLease lease;
  for (uint64_t offset = 0;;) {
    // Zeros are not announced, so nothing else shows that another pass has failed.
    if (Status failed = node_->checkpoint->status(); !failed) return failed;
    if (blocks_.any_wanted()) {
      lease.release();
      if (Status sent = send_zeros(); !sent) return sent;
      blocks_.await_none_wanted();
    }
    if (!lease) lease = slots_.pool.try_acquire();
    if (!lease) {
      if (Status sent = send_zeros(); !sent) return sent;
      auto waited = slots_.wait(*node_->checkpoint, [] { return false; });
      if (!waited) return failure(waited.error());
      lease = std::move(*waited);
      if (blocks_.any_wanted()) continue;
    }
    // Take the blocks only after this thread has a slot: while it waits for a slot, the other
    // thread may take the same blocks.
    const WantedBlocks::Part taken = blocks_.take_next(offset, lease.payload().size());
    if (taken.length == 0) return send_zeros();
    offset = taken.offset + taken.length;
    if (Status sent = send(lease, taken, kPatienceForParts); !sent) return sent;
  }
}

Status MemoryPass::send_wanted(SlotLease reserve, bool keep_reserve) {
  const auto get_slot = [&]() -> Status {
    if (reserve) return {};
    auto waited = slots_.wait(*node_->checkpoint, [this] { return blocks_.finished(); });
    if (!waited) return failure(waited.error());
    reserve = std::move(*waited);
    return {};
  };
  for (;;) {
    if (!keep_reserve) reserve.release();
    Status got = keep_reserve ? get_slot() : Status{};
    if (got && !blocks_.await_wanted()) return {};
    if (got) got = get_slot();
    if (!got) return blocks_.finished() ? Status{} : got;
    const WantedBlocks::Part taken = blocks_.take_wanted(reserve.payload().size());
    if (taken.length == 0) continue;
    // A reader waits for this block, so do not wait for slots.
    if (Status sent = send(reserve, taken, std::chrono::milliseconds(0)); !sent) return sent;
    if (Status sent = send_zeros(); !sent) return sent;
    blocks_.wanted_sent();
  }
}

// Reads the blocks into the slot, and sends the parts that are not zero. If all bytes are zero, the
// caller keeps the lease.
Status MemoryPass::send(SlotLease& lease, const WantedBlocks::Part& taken,
                        std::chrono::milliseconds patience_for_parts) {
  const std::span<std::byte> slot = lease.payload().first(taken.length);
  if (Status read = reader_.read(taken.offset, slot); !read) {
    if (UniqueFd filler = reader_.still_fills())
      slots_.lent.keep(std::move(lease), std::move(filler));
    return read;
  }
  find_nonzero(slot, parts_);
  const auto offset_of = [&](const std::byte* at) {
    return taken.offset + static_cast<uint64_t>(at - slot.data());
  };
  uint64_t at = taken.offset;
  for (const std::span<const std::byte> part : parts_) {
    if (Status added = add_zeros(at, offset_of(part.data())); !added) return added;
    at = offset_of(part.data() + part.size());
  }
  // Send the zeros now, because the following chunks may have to wait for slots.
  if (!parts_.empty()) {
    if (Status sent = send_zeros(); !sent) return sent;
  }
  if (Status added = add_zeros(at, taken.offset + taken.length); !added) return added;
  // A slot contains one chunk, so each part after the first moves to a slot of its own.
  while (parts_.size() > 1) {
    const std::span<const std::byte> part = parts_.back();
    SlotLease another = patience_for_parts.count() > 0 ? slots_.pool.acquire(patience_for_parts)
                                                       : slots_.pool.try_acquire();
    if (!another) break;
    const std::span<std::byte> copy = another.payload().first(part.size());
    std::memcpy(copy.data(), part.data(), copy.size());
    if (Status sent = send_chunk(std::move(another), copy, offset_of(part.data())); !sent) {
      return sent;
    }
    parts_.pop_back();
  }
  if (parts_.empty()) return {};
  const std::byte* const begin = parts_.front().data();
  const std::byte* const end = parts_.back().data() + parts_.back().size();
  return send_chunk(std::move(lease), {begin, end}, offset_of(begin));
}

Status MemoryPass::send_chunk(SlotLease lease, std::span<const std::byte> bytes, uint64_t offset) {
  const SourceCheckpoint& checkpoint = *node_->checkpoint;
  checkpoint.outlet->announce(
      node_->writer->cut_apart(std::move(lease), bytes, file_offset_ + offset));
  return checkpoint.status();
}

Status MemoryPass::add_zeros(uint64_t begin, uint64_t end) {
  if (begin == end) return {};
  if (begin != zeros_end_ || zeros_end_ - zeros_begin_ >= kZerosMaxBytes) {
    if (Status sent = send_zeros(); !sent) return sent;
    zeros_begin_ = begin;
  }
  zeros_end_ = end;
  return {};
}

Status MemoryPass::send_zeros() {
  const uint64_t begin = std::exchange(zeros_begin_, zeros_end_);
  if (begin == zeros_end_) return {};
  return node_->checkpoint->outlet->send(
      wire::Zeros{node_->id, file_offset_ + begin, zeros_end_ - begin});
}

}  // namespace

Status send_frozen_memory(const MemorySlots& slots, const SourceNodePointer& node,
                          const FrozenMemory& memory) {
  WantedSender wanted(slots, node, memory);
  if (Status alone = wanted.admit_wants(); !alone) return alone;
  // The chunks of the memory do not overlap each other. They must also not overlap earlier chunks,
  // so drain those first.
  if (Status drained = node->writer->drain(slots.mount_ends); !drained) return drained;
  for (const FrozenMemory::Part& part : memory.first) wanted.blocks().want(part.offset, part.bytes);
  wanted.start(memory.wanted_reader);
  FurtherPasses further(slots, node, memory, wanted.blocks());
  const Status sent = without_exceptions([&] {
    further.start();
    return MemoryPass(slots, node, memory.reader, wanted.blocks(), memory.file_offset).send_all();
  });
  if (!sent) node->checkpoint->error->set(sent.error());  // ends the further passes
  further.finish();
  if (Status all = node->checkpoint->status(); !all) return all;
  if (Status sent = wanted.finish(); !sent) return sent;
  // Set the size explicitly, because the memory may end in zeros.
  node->writer->set_size_bytes(memory.file_offset + memory.bytes);
  return {};
}

}  // namespace ppmr
