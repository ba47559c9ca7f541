#include "restart_loader/pager/page_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "mount/control/control_client.h"
#include "mount/control/mount_table.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{100};
constexpr milliseconds kDaemonPatience{2000};

}  // namespace

Result<std::shared_ptr<PageFile>> PageFile::open(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  UniqueFd arrived(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!arrived) return system_failure("open", path);
  return std::shared_ptr<PageFile>(new PageFile(path, std::move(file), std::move(arrived)));
}

Result<const std::byte*> PageFile::read(uint64_t offset, size_t length_bytes,
                                        std::byte* scratch) const {
  return read(file_, offset, length_bytes, scratch);
}

Result<const std::byte*> PageFile::read_arrived(uint64_t offset, size_t length_bytes,
                                                std::byte* scratch) const {
  auto bytes = read(arrived_, offset, length_bytes, scratch);
  if (!bytes && bytes.error().errno_value == EAGAIN) return nullptr;
  return bytes;
}

Result<const std::byte*> PageFile::read(const UniqueFd& file, uint64_t offset, size_t length_bytes,
                                        std::byte* scratch) const {
  size_t done = 0;
  while (is_borrowed_.load(std::memory_order_acquire) && done < length_bytes) {
    const auto part = borrowed_->at(offset + done, length_bytes - done,
                                    std::span(scratch + done, length_bytes - done));
    if (!part) return failure(part.error());
    if (part->empty()) return failure(EIO, path_ + " is too short");
    if (part->size() == length_bytes) return part->data();
    if (part->data() != scratch + done) std::memcpy(scratch + done, part->data(), part->size());
    done += part->size();
  }
  while (done < length_bytes) {
    const ssize_t n =
        pread(file.get(), scratch + done, length_bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_failure("read", path_);
    if (n == 0) return failure(EIO, path_ + " is too short");
    done += static_cast<size_t>(n);
  }
  return scratch;
}

Status PageFile::borrow(const std::function<bool()>& is_cancelled) {
  const auto mount = find_mount(path_);
  if (!mount) return {};
  const std::string& daemon = mount->mount.source;
  const nlohmann::json wait = {{"op", "wait"},
                               {"checkpoint", mount->remainder},
                               {"until", "sealed"},
                               {"timeout_ms", kSlice.count()}};
  for (;;) {
    if (is_cancelled()) return failure(ECANCELED, "the pager ends");
    const auto answer = call(daemon, wait, kSlice + kDaemonPatience);
    const Status sealed = answer ? accepted(*answer) : failure(answer.error());
    if (sealed) break;
    if (is_crowded(sealed.error())) {
      std::this_thread::sleep_for(kSlice);  // no event announces a free place
    } else if (sealed.error().errno_value != ETIMEDOUT) {
      return sealed;
    }
  }
  auto borrowed = BorrowedFile::borrow(daemon, mount->remainder, "");
  if (!borrowed && borrowed.error().errno_value == EOPNOTSUPP) return {};
  if (!borrowed) return failure(borrowed.error());
  borrowed_ = std::move(*borrowed);
  is_borrowed_.store(true, std::memory_order_release);
  return {};
}

}  // namespace ppmr
