#include "restart_loader/criu/hidden_memory.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "processes/memory/lazy_mapping.h"

namespace ppmr {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kEntryBytes = 8;
constexpr size_t kLineBytesMax = 8192;  // a name has at most PATH_MAX bytes, some as \012
constexpr size_t kFirstRoom = 4096;

uint64_t min_of(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Returns the number behind `name` at the beginning of a line; -1: there is no such line.
long number_behind(const char* name, const char* text, size_t length) {
  const size_t name_length = strlen(name);
  for (size_t at = 0; at + name_length < length; ++at) {
    if ((at > 0 && text[at - 1] != '\n') || memcmp(text + at, name, name_length) != 0) continue;
    at += name_length;
    while (at < length && (text[at] == ' ' || text[at] == '\t')) ++at;
    long number = at < length && text[at] >= '0' && text[at] <= '9' ? 0 : -1;
    for (; at < length && text[at] >= '0' && text[at] <= '9'; ++at) {
      number = number * 10 + (text[at] - '0');
    }
    return number;
  }
  return -1;
}

}  // namespace

bool may_hide(const char* status, size_t length, pid_t tracer) {
  return tracer > 0 && number_behind("TracerPid:", status, length) == tracer &&
         number_behind("VmLck:", status, length) == 0;
}

HiddenMemory::~HiddenMemory() {
  if (ranges_ != nullptr) munmap(ranges_, room_ * sizeof(Range));
}

bool HiddenMemory::add(uint64_t start, uint64_t end) {
  if (count_ > 0 && ranges_[count_ - 1].end == start) {
    ranges_[count_ - 1].end = end;
    return true;
  }
  if (count_ == room_) {
    const size_t room = room_ == 0 ? kFirstRoom : 2 * room_;
    void* const memory =
        room_ == 0 ? mmap(nullptr, room * sizeof(Range), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                   : mremap(ranges_, room_ * sizeof(Range), room * sizeof(Range), MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) return false;
    ranges_ = static_cast<Range*>(memory);
    room_ = room;
  }
  ranges_[count_++] = {start, end};
  return true;
}

bool HiddenMemory::read(int maps) {
  static char text[4 * kLineBytesMax];
  forget();
  size_t length = 0;
  for (;;) {
    const ssize_t got = ::read(maps, text + length, sizeof(text) - length);
    if (got == 0 && length == 0) return true;
    if (got <= 0) break;
    length += static_cast<size_t>(got);
    size_t begin = 0;
    while (const void* const found = memchr(text + begin, '\n', length - begin)) {
      const auto line_end = static_cast<size_t>(static_cast<const char*>(found) - text);
      uint64_t start = 0;
      uint64_t end = 0;
      if (is_lazy_mapping({text + begin, line_end - begin}, start, end) && !add(start, end)) {
        forget();
        return false;
      }
      begin = line_end + 1;
    }
    length -= begin;
    memmove(text, text + begin, length);
  }
  forget();  // an error, or a line without an end
  return false;
}

const HiddenMemory::Range* HiddenMemory::next(uint64_t address) const {
  const Range* first = ranges_;
  for (size_t left = count_; left > 0;) {
    const size_t half = left / 2;
    if (first[half].end <= address) {
      first += half + 1;
      left -= half + 1;
    } else {
      left = half;
    }
  }
  return first;
}

int HiddenMemory::scan(int pagemap, PageScan& scan) const {
  PageScan part = scan;
  uint64_t found = 0;
  uint64_t at = scan.start;
  const Range* hidden = next(at);
  while (at < scan.end) {
    const bool is_last = hidden == ranges_ + count_;
    const uint64_t visible_end = is_last ? scan.end : min_of(scan.end, hidden->start);
    if (at < visible_end) {
      part.start = at;
      part.end = visible_end;
      part.regions = scan.regions + found * sizeof(ScannedPages);
      part.regions_count = scan.regions_count - found;
      if (part.regions_count == 0) break;
      const long count = syscall(SYS_ioctl, pagemap, kPageScan, &part);
      if (count < 0) return -1;
      found += static_cast<uint64_t>(count);
      // Uses walk_end only if the regions are full: Linux 6.18 sets it too low after a whole scan.
      at = static_cast<uint64_t>(count) < part.regions_count ? visible_end : part.walk_end;
      if (at < visible_end) break;
    }
    if (is_last) break;
    at = hidden->end;
    ++hidden;
  }
  scan.walk_end = min_of(at, scan.end);
  return static_cast<int>(found);
}

ssize_t HiddenMemory::pread(int pagemap, void* entries, size_t bytes, off_t at) const {
  if (static_cast<uint64_t>(at) % kEntryBytes != 0 || bytes % kEntryBytes != 0) {
    return syscall(SYS_pread64, pagemap, entries, bytes, at);
  }
  const auto first = static_cast<uint64_t>(at) / kEntryBytes * kPageBytes;
  const uint64_t end = first + bytes / kEntryBytes * kPageBytes;
  char* const to = static_cast<char*>(entries);
  const auto position_of = [&](uint64_t address) {
    return (address - first) / kPageBytes * kEntryBytes;
  };
  uint64_t address = first;
  for (const Range* hidden = next(first); address < end; ++hidden) {
    const bool is_last = hidden == ranges_ + count_;
    const uint64_t visible_end = is_last ? end : min_of(end, hidden->start);
    while (address < visible_end) {
      const size_t position = position_of(address);
      const size_t wanted = position_of(visible_end) - position;
      const long got =
          syscall(SYS_pread64, pagemap, to + position, wanted, at + static_cast<off_t>(position));
      if (got < static_cast<long>(kEntryBytes)) {
        return position > 0 ? static_cast<ssize_t>(position) : static_cast<ssize_t>(got);
      }
      address += static_cast<uint64_t>(got) / kEntryBytes * kPageBytes;
    }
    if (is_last || address >= end) break;
    const uint64_t hidden_end = min_of(end, hidden->end);
    memset(to + position_of(address), 0, position_of(hidden_end) - position_of(address));
    address = hidden_end;
  }
  return static_cast<ssize_t>(bytes);
}

}  // namespace ppmr
