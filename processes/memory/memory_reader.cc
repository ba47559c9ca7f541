#include "processes/memory/memory_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "processes/process_identity.h"

namespace ppmr {
namespace {

constexpr size_t kGatheredMax = 1024;  // IOV_MAX

}  // namespace

Result<MemoryReader> MemoryReader::create(const PageIndex& index, Tree tree) {
  std::vector<Piece> pieces;
  std::vector<Span> shared;
  uint64_t end = 0;  // end of the pieces so far
  for (const IndexedTask& task : index.tasks) {
    for (const PageRange& range : task.ranges) {
      const uint64_t range_end = range.offset + range.bytes();
      if (range.offset < end) shared.push_back({range.offset, std::min(range_end, end)});
      if (range_end <= end) continue;
      if (range.offset > end) {
        return failure(EPROTO, fmt::format("the page index leaves out the memory at {:#x}", end));
      }
      pieces.push_back(
          {end, range.start + (end - range.offset), task.host_pid, task.host_start_time, false});
      end = range_end;
    }
  }
  if (end != index.memory_bytes) {
    return failure(EPROTO, fmt::format("the page index ends at {:#x}, but the memory at {:#x}", end,
                                       index.memory_bytes));
  }
  pieces.push_back({end, 0, 0, 0, false});
  mark_shared(pieces, std::move(shared));
  pieces.shrink_to_fit();
  return MemoryReader(std::make_shared<const std::vector<Piece>>(std::move(pieces)), tree);
}

// Cuts the pieces where shared memory begins and ends.
void MemoryReader::mark_shared(std::vector<Piece>& pieces, std::vector<Span> shared) {
  if (shared.empty()) return;
  std::sort(shared.begin(), shared.end(),
            [](const Span& a, const Span& b) { return a.offset < b.offset; });
  std::vector<Piece> cut;
  auto next = shared.begin();
  for (size_t i = 0; i + 1 < pieces.size(); ++i) {
    const uint64_t piece_end = pieces[i + 1].offset;
    const auto add = [&](uint64_t offset, bool is_shared) {
      cut.push_back(pieces[i]);
      cut.back().address += offset - pieces[i].offset;
      cut.back().offset = offset;
      cut.back().is_shared = is_shared;
    };
    for (uint64_t at = pieces[i].offset; at < piece_end;) {
      while (next != shared.end() && next->end <= at) ++next;
      const bool is_shared = next != shared.end() && next->offset <= at;
      add(at, is_shared);
      const uint64_t until = next == shared.end() ? piece_end
                             : is_shared          ? next->end
                                                  : next->offset;
      at = std::min(piece_end, until);
    }
  }
  cut.push_back(pieces.back());
  pieces = std::move(cut);
}

MemoryReader::MemoryReader(Pieces pieces, Tree tree) : tree_(tree), pieces_(std::move(pieces)) {
  gathered_.reserve(kGatheredMax);
}

// Another process may have the pid of a process that has ended. The reader must not read its
// memory.
bool MemoryReader::has_gone(const Piece& piece) const {
  return tree_ == Tree::kRuns && !is_alive({piece.process, piece.start_time});
}

Status MemoryReader::read(uint64_t offset, std::span<std::byte> to) {
  const uint64_t file_end = pieces_->back().offset;
  if (offset > file_end || to.size() > file_end - offset) {
    return failure(EINVAL,
                   fmt::format("read memory at {:#x}: the file ends at {:#x}", offset, file_end));
  }
  const auto behind = [](uint64_t at, const Piece& piece) { return at < piece.offset; };
  auto piece = std::upper_bound(pieces_->begin(), pieces_->end(), offset, behind) - 1;
  while (!to.empty()) {
    // One call reads from one process only.
    const pid_t process = piece->process;
    const bool is_shared = piece->is_shared;
    const bool gone = has_gone(*piece);
    size_t filled = 0;
    gathered_.clear();
    while (filled < to.size() && piece->process == process && piece->is_shared == is_shared &&
           gathered_.size() < kGatheredMax) {
      const uint64_t skipped = offset - piece->offset;
      const uint64_t length = std::min<uint64_t>((piece + 1)->offset - offset, to.size() - filled);
      gathered_.push_back({reinterpret_cast<void*>(piece->address + skipped), length});
      filled += length;
      offset += length;
      if (offset == (piece + 1)->offset) ++piece;
    }
    if (gone) {
      std::memset(to.data(), 0, filled);
    } else {
      const Status done = is_shared ? read_rest(process, 0, to.first(filled))
                                    : read_gathered(process, to.first(filled));
      if (!done) return done;
    }
    to = to.subspan(filled);
  }
  return {};
}

Status MemoryReader::read_gathered(pid_t process, std::span<std::byte> bytes) {
  const iovec local{bytes.data(), bytes.size()};
  const ssize_t n = process_vm_readv(process, &local, 1, gathered_.data(), gathered_.size(), 0);
  if (n < 0 && errno != EFAULT && !(errno == ESRCH && tree_ == Tree::kRuns)) {
    return system_failure("read the memory of process", std::to_string(process));
  }
  // Memory without read permission stops the call (EFAULT).
  return read_rest(process, static_cast<size_t>(std::max<ssize_t>(n, 0)), bytes);
}

// Reads all but the first `done` bytes from /proc/PID/mem, which ignores permissions and leaves a
// page shared. process_vm_readv(2) pins pages, so the kernel first gives the process a page of its
// own (gup_must_unshare() in mm/internal.h).
Status MemoryReader::read_rest(pid_t process, size_t done, std::span<std::byte> bytes) {
  std::byte* to = bytes.data() + done;
  for (const iovec& remote : gathered_) {
    const size_t skipped = std::min(done, remote.iov_len);
    done -= skipped;
    if (skipped == remote.iov_len) continue;
    const iovec rest{static_cast<std::byte*>(remote.iov_base) + skipped, remote.iov_len - skipped};
    if (Status read = read_forcibly(process, rest, to); !read) return read;
    to += rest.iov_len;
  }
  return {};
}

Status MemoryReader::read_forcibly(pid_t process, const iovec& remote, std::byte* to) {
  const auto path = [process] { return fmt::format("/proc/{}/mem", process); };
  if (!memory_ || memory_of_ != process) {
    memory_ = UniqueFd(open(path().c_str(), O_RDONLY | O_CLOEXEC));
    memory_of_ = process;
    if (!memory_ && tree_ == Tree::kFrozen) return system_failure("open", path());
  }
  const auto address = reinterpret_cast<uint64_t>(remote.iov_base);
  for (size_t done = 0; done < remote.iov_len;) {
    const ssize_t n =
        pread(memory_.get(), to + done, remote.iov_len - done, static_cast<off_t>(address + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 && tree_ == Tree::kRuns) {  // the next round finds what is there then
      const size_t page_end = kPageBytes - (address + done) % kPageBytes;
      const size_t length = std::min(page_end, remote.iov_len - done);
      std::memset(to + done, 0, length);
      done += length;
      continue;
    }
    if (n <= 0) {
      return failure(n < 0 ? errno : EIO,
                     fmt::format("read {} at {:#x}: {}", path(), address + done,
                                 n < 0 ? std::strerror(errno) : "there is no memory"));
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace ppmr
