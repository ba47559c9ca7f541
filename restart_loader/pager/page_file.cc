#include "restart_loader/pager/page_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <span>
#include <thread>

#include "daemon/control/control_client.h"
#include "mount/mount_table.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{100};
// The interval at which this process borrows bytes that have arrived. At 2 GB/s, 10 MB arrive in
// one interval.
constexpr milliseconds kArrivalSlice{5};

// Opens the file without following links in a mount of ppmr. The source of a checkpoint chooses
// what is in the checkpoint, and this process reads as root.
UniqueFd open_without_links(const MountedPath& path) {
  const UniqueFd top(::open(path.mount.mountpoint.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top) return UniqueFd();
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  return UniqueFd(
      static_cast<int>(syscall(SYS_openat2, top.get(), path.remainder.c_str(), &how, sizeof how)));
}

// The daemon lends files by their paths in its mount. The path that was opened may be a path in
// /proc.
Result<MountedPath> find_mount_of(const UniqueFd& file) {
  std::error_code error;
  const auto found =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file.get()), error);
  if (error) return failure(error.value(), error.message());
  return find_mount(found.string());
}

}  // namespace

Result<std::shared_ptr<PageFile>> PageFile::open(const std::string& path) {
  auto mount = find_mount(path);
  UniqueFd file =
      mount ? open_without_links(*mount) : UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  if (!mount) mount = find_mount_of(file);
  std::unique_ptr<BorrowedFile> borrowed;
  if (mount) {
    const std::string& inside = mount->remainder;
    const size_t slash = std::min(inside.find('/'), inside.size());
    borrowed = std::make_unique<BorrowedFile>(mount->mount.source, inside.substr(0, slash),
                                              inside.substr(std::min(slash + 1, inside.size())));
  }
  return std::shared_ptr<PageFile>(new PageFile(path, std::move(file), std::move(borrowed)));
}

bool PageFile::has_arrived(uint64_t offset, size_t length_bytes) const {
  return is_complete_.load(std::memory_order_acquire) ||
         (is_lent_.load(std::memory_order_acquire) &&
          offset + length_bytes <= borrowed_->end_bytes());
}

Result<const std::byte*> PageFile::read(uint64_t offset, size_t length_bytes,
                                        std::byte* scratch) const {
  size_t done = 0;
  while (is_lent_.load(std::memory_order_acquire) && done < length_bytes) {
    const auto part = borrowed_->at(offset + done, length_bytes - done,
                                    std::span(scratch + done, length_bytes - done));
    if (!part) return failure(part.error());
    if (part->empty()) break;
    if (part->size() == length_bytes) return part->data();
    if (part->data() != scratch + done) std::memcpy(scratch + done, part->data(), part->size());
    done += part->size();
  }
  while (done < length_bytes) {
    const ssize_t n =
        pread(file_.get(), scratch + done, length_bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_failure("read", path_);
    if (n == 0) return failure(EIO, path_ + " is too short");
    done += static_cast<size_t>(n);
  }
  return scratch;
}

Status PageFile::borrow(const BorrowOptions& options) {
  for (;;) {
    if (!borrowed_) break;
    const Status borrowed = borrowed_->borrow_all();
    if (borrowed) is_lent_.store(true, std::memory_order_release);
    if (borrowed || borrowed.error().errno_value == EOPNOTSUPP) break;
    if (options.is_cancelled()) return failure(ECANCELED, "the pager ends");
    if (is_crowded(borrowed.error())) {
      std::this_thread::sleep_for(kSlice);  // no event announces a free place
    } else if (borrowed.error().errno_value != EBUSY) {
      return borrowed;
    } else if (Status sealed = await_seal(options); !sealed) {
      return sealed;
    }
  }
  is_complete_.store(true, std::memory_order_release);
  return {};
}

// Also returns success when another attempt to borrow may succeed.
Status PageFile::await_seal(const BorrowOptions& options) {
  const milliseconds slice = options.early ? kArrivalSlice : kSlice;
  const Status sealed = borrowed_->await_seal(slice);
  if (sealed) return {};
  if (is_crowded(sealed.error())) {
    std::this_thread::sleep_for(kSlice);  // no event announces a free place
    return {};
  }
  if (sealed.error().errno_value != ETIMEDOUT) return sealed;
  if (!options.early) return {};
  const uint64_t before = borrowed_->end_bytes();
  // After an error the bytes can still be read through the mount. If they cannot, the seal fails,
  // too.
  if (borrowed_->borrow_arrived() && borrowed_->end_bytes() > before) {
    is_lent_.store(true, std::memory_order_release);
    options.arrived();
  }
  return {};
}

}  // namespace ppmr
