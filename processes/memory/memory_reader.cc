#include "processes/memory/memory_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "processes/memory/page_tables.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kGatheredMax = 1024;  // IOV_MAX
// How often a page is read if each read fails although the process uses the page afterwards.
constexpr int kReadsMax = 10;

std::string memory_path(pid_t process) { return fmt::format("/proc/{}/mem", process); }

// Returns the number of bytes from the start of the range to the first page in use.
Result<uint64_t> count_unused_bytes(pid_t process, const AddressRange& range) {
  auto tables = PageTables::open(process);
  if (!tables) return failure(tables.error());
  uint64_t used = range.end;  // the first page in use
  const AddressRange pages{range.start - range.start % kPageBytes,
                           (range.end + kPageBytes - 1) / kPageBytes * kPageBytes};
  const Status listed = tables->list(pages, [&](uint64_t address, PageEntry) -> Status {
    used = std::min(used, address);
    return {};
  });
  if (!listed) return failure(listed.error());
  return std::max(used, range.start) - range.start;
}

// Returns the number of bytes at the start of the range that are no longer private anonymous memory
// of the process, or that the process no longer uses.
Result<uint64_t> count_gone_bytes(pid_t process, const AddressRange& range) {
  auto gone = count_unused_bytes(process, range);
  if (gone && *gone == 0) {  // the address may be in a mapping of another kind now
    const auto others = other_memory(process);
    if (!others) gone = failure(others.error());
    for (const AddressRange& other : others ? *others : std::vector<AddressRange>{}) {
      if (other.start > range.start || other.end <= range.start) continue;
      gone = std::min(other.end, range.end) - range.start;
    }
  }
  if (gone) return gone;
  const int error = gone.error().errno_value;
  if (error == ENOENT || error == ESRCH) return range.bytes();  // the process has ended
  return gone;
}

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
Result<bool> MemoryReader::has_gone(const Piece& piece) const {
  if (tree_ == Tree::kFrozen) return false;
  const auto stat = read_process_stat(piece.process);
  if (stat) return stat->is_dead() || stat->start_time_ticks != piece.start_time;
  if (stat.error().errno_value == ESRCH) return true;
  return failure(stat.error());
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
    const auto gone = has_gone(*piece);
    if (!gone) return failure(gone.error());
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
    if (*gone) {
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
  const auto opened = open_memory(process);
  if (!opened) return failure(opened.error());
  if (!*opened) {
    std::memset(to, 0, remote.iov_len);
    return {};
  }
  const auto address = reinterpret_cast<uint64_t>(remote.iov_base);
  int failed = 0;  // number of reads of this page that failed
  for (size_t done = 0; done < remote.iov_len;) {
    const ssize_t n =
        pread(memory_.get(), to + done, remote.iov_len - done, static_cast<off_t>(address + done));
    const int error = n < 0 ? errno : 0;
    if (error == EINTR) continue;
    if (n > 0) {
      done += static_cast<size_t>(n);
      failed = 0;
      continue;
    }
    // A later round sends what the process has at these addresses then.
    if (tree_ == Tree::kRuns) {
      const AddressRange rest{address + done, address + remote.iov_len};
      // If the read returns neither bytes nor an error, the whole address space has gone.
      const auto gone =
          error == 0 ? Result<uint64_t>(rest.bytes()) : count_gone_bytes(process, rest);
      if (!gone) return failure(gone.error());
      std::memset(to + done, 0, *gone);
      done += *gone;
      failed = *gone > 0 ? 0 : failed + 1;
      if (failed < kReadsMax) continue;
    }
    return failure(error != 0 ? error : EIO,
                   fmt::format("read {} at {:#x}: {}", memory_path(process), address + done,
                               error != 0 ? std::strerror(error) : "there is no memory"));
  }
  return {};
}

// Returns false if the tree runs and the process has ended.
Result<bool> MemoryReader::open_memory(pid_t process) {
  if (memory_ && memory_of_ == process) return true;
  const std::string path = memory_path(process);
  memory_ = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  memory_of_ = process;
  if (memory_) return true;
  if (tree_ == Tree::kRuns && (errno == ENOENT || errno == ESRCH)) return false;
  return system_failure("open", path);
}

}  // namespace ppmr
