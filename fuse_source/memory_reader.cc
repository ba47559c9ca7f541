#include "fuse_source/memory_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace ppmr {
namespace {

constexpr size_t kGatheredMax = 1024;  // IOV_MAX
// A part costs an announcement and, behind the first part of a slot, a copy.
constexpr size_t kZeroPagesMin = 16;

}  // namespace

MemoryReader::MemoryReader(const PageIndex& index) : index_(index) {
  gathered_.reserve(kGatheredMax);
}

Result<size_t> MemoryReader::next(std::span<std::byte> slot) {
  const auto wanted =
      static_cast<size_t>(std::min<uint64_t>(slot.size(), index_.memory_bytes - offset_));
  size_t filled = 0;  // with what is read or gathered
  size_t read = 0;
  const auto read_all = [&]() -> Status {
    const Status done = read_gathered(slot.subspan(read, filled - read));
    read = filled;
    return done;
  };
  while (filled < wanted) {
    const size_t task_before = task_;
    if (Status found = take_range(); !found) return failure(found.error());
    // One call reads from one process.
    if (task_ != task_before || gathered_.size() == kGatheredMax) {
      if (Status done = read_all(); !done) return failure(done.error());
    }
    gathered_from_ = index_.tasks[task_].host_pid;
    const PageRange& range = index_.tasks[task_].ranges[range_];
    const uint64_t bytes = std::min<uint64_t>(range.bytes() - taken_, wanted - filled);
    gathered_.push_back({reinterpret_cast<void*>(range.start + taken_), bytes});
    filled += bytes;
    offset_ += bytes;
  }
  if (Status done = read_all(); !done) return failure(done.error());
  return wanted;
}

// Moves on to the range that has the bytes at offset_.
Status MemoryReader::take_range() {
  for (; task_ < index_.tasks.size(); ++task_, range_ = 0, taken_ = 0) {
    const std::vector<PageRange>& ranges = index_.tasks[task_].ranges;
    for (; range_ < ranges.size(); ++range_, taken_ = 0) {
      const PageRange& range = ranges[range_];
      if (range.offset + range.bytes() <= offset_) continue;  // shared, and read before
      if (range.offset > offset_) {
        return failure(EPROTO,
                       fmt::format("the page index leaves out the memory at {:#x}", offset_));
      }
      taken_ = offset_ - range.offset;
      return {};
    }
  }
  return failure(EPROTO, fmt::format("the page index ends at {:#x}", offset_));
}

Status MemoryReader::read_gathered(std::span<std::byte> slot) {
  if (gathered_.empty()) return {};
  const pid_t pid = gathered_from_;
  const iovec local{slot.data(), slot.size()};
  const ssize_t n = process_vm_readv(pid, &local, 1, gathered_.data(), gathered_.size(), 0);
  if (n < 0 && errno != EFAULT) {
    return system_failure("read the memory of process", std::to_string(pid));
  }
  // Memory without read permission stops the call (EFAULT); /proc/PID/mem ignores permissions.
  auto done = static_cast<size_t>(std::max<ssize_t>(n, 0));
  std::byte* to = slot.data() + done;
  for (iovec& remote : gathered_) {
    const size_t skipped = std::min(done, remote.iov_len);
    done -= skipped;
    if (skipped == remote.iov_len) continue;
    const iovec rest{static_cast<std::byte*>(remote.iov_base) + skipped, remote.iov_len - skipped};
    if (Status read = read_forcibly(rest, to); !read) return read;
    to += rest.iov_len;
  }
  gathered_.clear();
  return {};
}

Status MemoryReader::read_forcibly(const iovec& remote, std::byte* to) {
  const pid_t pid = gathered_from_;
  const std::string path = fmt::format("/proc/{}/mem", pid);
  if (!memory_ || memory_pid_ != pid) {
    memory_ = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    memory_pid_ = pid;
    if (!memory_) return system_failure("open", path);
  }
  const auto address = reinterpret_cast<uint64_t>(remote.iov_base);
  for (size_t done = 0; done < remote.iov_len;) {
    const ssize_t n =
        pread(memory_.get(), to + done, remote.iov_len - done, static_cast<off_t>(address + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return failure(n < 0 ? errno : EIO,
                     fmt::format("read {} at {:#x}: {}", path, address + done,
                                 n < 0 ? std::strerror(errno) : "there is no memory"));
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

void find_nonzero(std::span<const std::byte> bytes,
                  std::vector<std::span<const std::byte>>& parts) {
  static constexpr std::array<std::byte, kPageBytes> kZeros{};
  parts.clear();
  size_t part_start = 0;
  size_t part_end = 0;  // behind the last page that is not zero
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) {
    if (std::memcmp(bytes.data() + at, kZeros.data(), kPageBytes) == 0) continue;
    if (part_end == 0) {
      part_start = at;
    } else if (at - part_end >= kZeroPagesMin * kPageBytes) {
      parts.push_back(bytes.subspan(part_start, part_end - part_start));
      part_start = at;
    }
    part_end = at + kPageBytes;
  }
  if (part_end > 0) parts.push_back(bytes.subspan(part_start, part_end - part_start));
}

}  // namespace ppmr
