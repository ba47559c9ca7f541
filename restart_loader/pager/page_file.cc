#include "restart_loader/pager/page_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "mount/control/control_client.h"
#include "mount/control/mount_table.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{100};
// How often bytes that have arrived are borrowed: at 2 GB/s, 10 MB of them.
constexpr milliseconds kArrivalSlice{5};
constexpr milliseconds kDaemonPatience{2000};

// The source of a checkpoint chooses what is in it, and this process reads as root: links in a
// mount of ppmr are not followed.
UniqueFd open_without_links(const std::string& path) {
  const auto mount = find_mount(path);
  if (!mount) return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd top(::open(mount->mount.mountpoint.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top) return UniqueFd();
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  return UniqueFd(static_cast<int>(
      syscall(SYS_openat2, top.get(), mount->remainder.c_str(), &how, sizeof how)));
}

// The daemon lends files by their paths in its mount; the path that was opened may be one of /proc.
std::string name_in_mount(const UniqueFd& file, const std::string& path) {
  std::error_code error;
  const auto found =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file.get()), error);
  return error ? path : found.string();
}

}  // namespace

Result<std::shared_ptr<PageFile>> PageFile::open(const std::string& path) {
  UniqueFd file = open_without_links(path);
  if (!file) return system_failure("open", path);
  return std::shared_ptr<PageFile>(new PageFile(path, std::move(file)));
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
  const auto mount = find_mount(name_in_mount(file_, path_));
  if (!mount) {
    is_complete_.store(true, std::memory_order_release);
    return {};
  }
  const std::string& daemon = mount->mount.source;
  const size_t slash = std::min(mount->remainder.find('/'), mount->remainder.size());
  const std::string checkpoint = mount->remainder.substr(0, slash);
  const std::string file = mount->remainder.substr(std::min(slash + 1, mount->remainder.size()));
  borrowed_ = std::make_unique<BorrowedFile>(daemon, checkpoint, file);
  const milliseconds slice = options.early ? kArrivalSlice : kSlice;
  const nlohmann::json wait = {{"op", "wait"},
                               {"checkpoint", checkpoint},
                               {"until", "sealed"},
                               {"timeout_ms", slice.count()}};
  for (;;) {
    if (options.is_cancelled()) return failure(ECANCELED, "the pager ends");
    const auto answer = call(daemon, wait, slice + kDaemonPatience);
    const Status sealed = answer ? accepted(*answer) : failure(answer.error());
    if (sealed) break;
    if (is_crowded(sealed.error())) {
      std::this_thread::sleep_for(kSlice);  // no event announces a free place
    } else if (sealed.error().errno_value != ETIMEDOUT) {
      return sealed;
    } else if (options.early) {
      const uint64_t before = borrowed_->end_bytes();
      // An error is not the end: the bytes can be read through the mount. If they cannot, the seal
      // fails, too.
      if (borrowed_->borrow_arrived() && borrowed_->end_bytes() > before) {
        is_lent_.store(true, std::memory_order_release);
        options.arrived();
      }
    }
  }
  Status borrowed = borrowed_->borrow_all();
  while (!borrowed && is_crowded(borrowed.error())) {
    if (options.is_cancelled()) return failure(ECANCELED, "the pager ends");
    std::this_thread::sleep_for(kSlice);
    borrowed = borrowed_->borrow_all();
  }
  if (!borrowed && borrowed.error().errno_value != EOPNOTSUPP) return borrowed;
  if (borrowed) is_lent_.store(true, std::memory_order_release);
  is_complete_.store(true, std::memory_order_release);
  return {};
}

}  // namespace ppmr
