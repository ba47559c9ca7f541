// The page tables of a process, as /proc/PID/pagemap and its PAGEMAP_SCAN ioctl (Linux 6.7) show
// them. Source: Documentation/admin-guide/mm/pagemap.rst of the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/memory/page_scan.h"
#include "processes/memory/zero_pages.h"

namespace ppmr {

// Addresses of a process, at page boundaries.
struct AddressRange {
  uint64_t start = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - start; }
  bool operator==(const AddressRange&) const = default;
};

// One entry of /proc/PID/pagemap, which has an entry for each page.
class PageEntry {
 public:
  explicit PageEntry(uint64_t bits) : bits_(bits) {}
  bool is_in_use() const { return (bits_ & (kPresent | kSwapped)) != 0; }
  bool is_present() const { return (bits_ & kPresent) != 0; }
  // The page traps on access and has no bytes (MADV_GUARD_INSTALL).
  bool is_guard() const { return (bits_ & kGuard) != 0; }
  // Written since the soft-dirty bits of the process were cleared, or in a mapping made since.
  // Never set by a kernel without CONFIG_MEM_SOFT_DIRTY.
  bool is_soft_dirty() const { return (bits_ & kSoftDirty) != 0; }
  // No other process maps the page.
  bool is_exclusive() const { return (bits_ & kExclusive) != 0; }
  // The frame, or the place in the swap space; 0 if the kernel does not show it.
  uint64_t frame() const { return bits_ & kFrame; }
  // Equal for all mappings of one page.
  uint64_t identity() const { return bits_ & (kFrame | kSwapped); }

 private:
  static constexpr uint64_t kPresent = uint64_t{1} << 63;
  static constexpr uint64_t kSwapped = uint64_t{1} << 62;
  static constexpr uint64_t kGuard = uint64_t{1} << 58;  // since Linux 6.15
  static constexpr uint64_t kExclusive = uint64_t{1} << 56;
  static constexpr uint64_t kSoftDirty = uint64_t{1} << 55;
  static constexpr uint64_t kFrame = (uint64_t{1} << 55) - 1;

  uint64_t bits_;
};

// A region of pages in use that a scan has found.
struct ScannedRegion {
  AddressRange range;
  // The pages were not written since the tracker of the process last protected or reset them.
  // Without a tracker, this value has no meaning.
  bool is_unwritten = false;
};

enum class ScanFor {
  kInUse,          // all pages in use
  kWritten,        // pages in use that were written since the last protecting scan; protects them
  kInUseProtects,  // all pages in use; protects them
};

// The frame of each page of a process when its soft-dirty bits were cleared. mremap(2) moves
// aligned memory by whole page tables, and sets no bit of the pages, but each then has the frame of
// another address. So a page in another frame counts as written.
//
// That costs little: the kernel rarely moves a page to another frame. But if a page is shared, to
// read it with process_vm_readv(2) gives it a frame of its own (FAULT_FLAG_UNSHARE, Linux 5.19). So
// pages that a process shares with its children are sent twice.
class CleanFrames {
 public:
  // Call it with ascending addresses.
  void add(uint64_t address, PageEntry entry) { pages_.push_back({address, entry.identity()}); }
  // Returns whether the page is in the same frame. `next`: the caller's position in the list; the
  // call is quick if it asks for ascending addresses.
  bool has(uint64_t address, PageEntry entry, size_t& next) const;
  void reserve_as(const CleanFrames& other) { pages_.reserve(other.pages_.size()); }

 private:
  struct Page {
    uint64_t address = 0;
    uint64_t identity = 0;
  };
  std::vector<Page> pages_;
};

// Where to look up which pages a process has written. Null: in the write-protection, which the scan
// shows. Else in the soft-dirty bits, which only PageEntry shows, and in these frames.
using WriteRecord = const CleanFrames*;

// Threads: one.
class PageTables {
 public:
  using Visit = std::function<Status(const ScannedRegion& region)>;
  using VisitEntry = std::function<Status(uint64_t address, PageEntry entry)>;

  // `record`: where find_pages_in_use() looks up which pages were written; must outlive the result.
  // Errors: those of open(2); the message names the file.
  static Result<PageTables> open(pid_t pid, WriteRecord record = nullptr);

  // Calls `visit` for the regions in the order of their addresses. Leaves out guard pages. Unless
  // the scan protects, it also leaves out memory that was read and never written
  // (frame_of_zeros()). Errors: ENOTTY if the kernel has no such scan (before Linux 6.7); EPERM if
  // the scan protects, and memory in the range is not tracked: then some pages may be protected
  // although `visit` did not get them; those of `visit`.
  Status scan(AddressRange range, ScanFor what, const Visit& visit);
  // Calls `visit` for each page in use. Leaves out guard pages. Errors: ESRCH if the process has
  // ended or executes another program; those of `visit`.
  Status list(AddressRange range, const VisitEntry& visit);
  // Like scan() for pages in use, on every kernel. With a `record`, also adds the pages to
  // `frames`.
  Status find_pages_in_use(AddressRange range, const Visit& visit, CleanFrames* frames = nullptr);

 private:
  PageTables(pid_t pid, UniqueFd file, WriteRecord record);
  Status find_by_entries(AddressRange range, const Visit& visit, CleanFrames* frames);

  pid_t pid_;
  UniqueFd file_;
  std::vector<uint64_t> entries_;
  std::vector<ScannedPages> regions_;
  std::optional<ZeroPages> zeros_;
  WriteRecord record_;
  size_t next_clean_ = 0;  // see CleanFrames::has()
  bool can_scan_;
  bool knows_guards_ = true;
};

// Returns the frame of the zero page, which the kernel maps where a process has read memory that it
// never wrote; 0 if unknown.
uint64_t frame_of_zeros();

// Returns the private anonymous mappings of a process that a lazy dump of CRIU leaves out: all but
// locked ones. Joins neighbouring mappings to one range, which takes one scan: a program that
// protects single pages has tens of thousands of mappings. Errors: those of read_process_file().
Result<std::vector<AddressRange>> lazy_memory(pid_t pid);
// Returns all other mappings: of files, shared, of the kernel. Joins neighbouring mappings.
Result<std::vector<AddressRange>> other_memory(pid_t pid);

}  // namespace ppmr
