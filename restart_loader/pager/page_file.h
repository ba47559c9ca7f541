// The file that has the bytes of missing pages: a pages file of CRIU, or a memory file
// (mount/page_index). Bytes of a memory file that has arrived are borrowed from the target's daemon
// (borrowed_file.h): then reads need neither the daemon nor a system call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"
#include "restart_loader/pager/borrowed_file.h"

namespace ppmr {

// Threads: the reads by any, also during borrow(); borrow() by one.
class PageFile {
 public:
  static Result<std::shared_ptr<PageFile>> open(const std::string& path);

  // The bytes at `offset`: in the file's own memory if they are there in one piece, else copied to
  // `scratch`. Blocks while they have not arrived. Valid as long as this object and `scratch`.
  // Errors: EIO, of the file system.
  Result<const std::byte*> read(uint64_t offset, size_t length_bytes, std::byte* scratch) const;

  // Like read(), but returns null at once if bytes have not arrived.
  Result<const std::byte*> read_arrived(uint64_t offset, size_t length_bytes,
                                        std::byte* scratch) const;

  // Waits until the file is sealed, then borrows its bytes. Does nothing for a file that is in no
  // ppmr mount, or that its mount cannot lend. Errors: ECANCELED when `is_cancelled`, which it asks
  // every 100 ms; those of the checkpoint.
  Status borrow(const std::function<bool()>& is_cancelled);

 private:
  PageFile(std::string path, UniqueFd file, UniqueFd arrived)
      : path_(std::move(path)), file_(std::move(file)), arrived_(std::move(arrived)) {}
  Result<const std::byte*> read(const UniqueFd& file, uint64_t offset, size_t length_bytes,
                                std::byte* scratch) const;

  const std::string path_;
  const UniqueFd file_;
  const UniqueFd arrived_;  // with O_NONBLOCK: a ppmr mount answers EAGAIN instead of waiting
  std::optional<BorrowedFile> borrowed_;  // constant once is_borrowed_
  std::atomic<bool> is_borrowed_ = false;
};

}  // namespace ppmr
