// Memory that a device writes. The device writes to pinned pages without the page tables. No round
// finds these writes until the process makes the kernel count the pages as written
// (MADV_POPULATE_WRITE), as verbs_library does after it has released its devices.
//
// The device is io_uring: a registered buffer is pinned like a memory region of RDMA, and a read
// into it writes the pages by their addresses in the kernel.
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

#include <array>

#include "processes/memory/live_memory_rig.h"
#include "processes/memory/write_protection.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ppmr {
namespace {

constexpr unsigned kEntries = 4;

// A ring with one registered buffer. The process closes the descriptor of the ring, because live
// rounds refuse a process that has such a descriptor. It uses the ring by its registered number.
class Device {
 public:
  Device(std::byte* buffer, size_t size) : buffer_(buffer) {
    const auto ring = static_cast<int>(syscall(SYS_io_uring_setup, kEntries, &parameters_));
    if (ring < 0) return;
    const size_t bytes = parameters_.sq_off.array + parameters_.sq_entries * sizeof(unsigned);
    void* queue = mmap(nullptr, std::max<size_t>(bytes, 4096), PROT_READ | PROT_WRITE, MAP_SHARED,
                       ring, IORING_OFF_SQ_RING);
    void* entries = mmap(nullptr, parameters_.sq_entries * sizeof(io_uring_sqe),
                         PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    iovec pinned{buffer, size};
    io_uring_rsrc_update itself{};
    itself.offset = UINT32_MAX;  // any free number
    itself.data = static_cast<uint64_t>(ring);
    is_ready_ = queue != MAP_FAILED && entries != MAP_FAILED &&
                syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &pinned, 1) == 0 &&
                syscall(SYS_io_uring_register, ring, IORING_REGISTER_RING_FDS, &itself, 1) == 1;
    number_ = itself.offset;
    queue_ = static_cast<std::byte*>(queue);
    entries_ = static_cast<io_uring_sqe*>(entries);
    close(ring);
  }
  bool is_ready() const { return is_ready_; }

  // Makes the device write `value` into the whole page. No page table shows the write.
  bool write(size_t page, std::byte value) {
    const int file = memfd_create("data", 0);
    std::array<std::byte, kPage> bytes;
    bytes.fill(value);
    if (pwrite(file, bytes.data(), kPage, 0) != static_cast<ssize_t>(kPage)) return false;
    io_uring_sqe& entry = entries_[0];
    entry = {};
    entry.opcode = IORING_OP_READ_FIXED;
    entry.fd = file;
    entry.addr = reinterpret_cast<uint64_t>(buffer_ + page * kPage);
    entry.len = kPage;
    auto* array = reinterpret_cast<unsigned*>(queue_ + parameters_.sq_off.array);
    auto* tail = reinterpret_cast<unsigned*>(queue_ + parameters_.sq_off.tail);
    array[*tail & (parameters_.sq_entries - 1)] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    ++submitted_;
    const unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING;
    // The queue keeps all completions, because this class takes none. So the call waits until the
    // queue has one for each request so far.
    const long done = syscall(SYS_io_uring_enter, number_, 1, submitted_, flags, nullptr, 0);
    close(file);
    return done == 1 && buffer_[page * kPage] == value;
  }

  // Does what verbs_library does after it has released a region that a device may write. The buffer
  // stays pinned, but nothing writes to it any more.
  bool release(size_t size) { return madvise(buffer_, size, MADV_POPULATE_WRITE) == 0; }

 private:
  std::byte* buffer_;
  io_uring_params parameters_{};
  unsigned number_ = 0;
  unsigned submitted_ = 0;
  std::byte* queue_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
  bool is_ready_ = false;
};

// Live rounds of a process whose memory a device may write.
class DeviceWrites : public LiveRounds {
 protected:
  void SetUp() override {
    LiveRounds::SetUp();
    if (IsSkipped()) return;
    Device probe(memory_, kPages * kPage);
    if (!probe.is_ready() || !probe.write(0, std::byte{1}))
      GTEST_SKIP() << "NOT TESTED: writes of devices: this kernel has no io_uring: "
                   << std::strerror(errno);
    munmap(memory_, kPages * kPage);  // the pages stay pinned until the ring ends
    memory_ = map(MAP_PRIVATE);
  }
  // 'p': pins the memory; 'a', 'b': the device writes page 3 or 40; 'r': released.
  LiveProcess::Work work() {
    return [this](char what) {
      static Device* device = nullptr;
      if (what == 'p') device = new Device(memory_, kPages * kPage);
      const bool done = what == 'p'   ? device->is_ready()
                        : what == 'a' ? device->write(3, std::byte{9})
                        : what == 'b' ? device->write(40, std::byte{10})
                                      : device->release(kPages * kPage);
      if (!done) _exit(1);
    };
  }
};

TEST_F(DeviceWrites, AreSentAgainWhenTheProcessHasReleasedTheDevice) {
  touch(memory_, 0, kPages);
  const LiveProcess process(work());
  process.does('p');
  round(process);
  process.does('a');
  round(process);
  process.does('b');
  process.does('r');
  // finish() compares every byte with the memory of the frozen process.
  EXPECT_GE(finish(process), kPages * kPage);
}

// The counter-check: without the release, asynchronous write-protection misses the write, so the
// test above can fail. Soft-dirty bits are never cleared on pinned pages.
TEST_F(DeviceWrites, AreMissedByWriteProtectionBeforeTheRelease) {
  if (!WriteProtection::is_possible())
    GTEST_SKIP() << "NOT TESTED: write-protection: this kernel lacks it";
  touch(memory_, 0, kPages);
  const LiveProcess process(work());
  process.does('p');
  const uint64_t first = round(process);
  round(process);
  process.does('a');
  process.freeze();
  const auto last = live_->index_frozen({process.identity()});
  ASSERT_TRUE(last) << last.error().message;
  ASSERT_TRUE(place(last->all.tasks.front(), memory_, 3));
  EXPECT_LT(*place(last->all.tasks.front(), memory_, 3), first + kPages * kPage)
      << "the page is sent again, so pinned pages need no help";
}

}  // namespace
}  // namespace ppmr
