// The file that has the bytes of missing pages: a pages file of CRIU, or a memory file
// (processes/memory). Bytes of a memory file are borrowed from the target's daemon when they have
// arrived (borrowed_file.h): then reads need neither the daemon nor a system call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
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

  // Whether the bytes are borrowed, or need not be: borrow() has returned.
  bool has_arrived(uint64_t offset, size_t length_bytes) const;

  // Waits until the file is sealed, then borrows its bytes; those that arrive `early` are borrowed
  // at once. Does nothing for a file that is in no ppmr mount, or that its mount cannot lend.
  // Errors: ECANCELED when `is_cancelled`, which it asks at least every 100 ms; those of the
  // checkpoint.
  struct BorrowOptions {
    bool early = false;
    std::function<bool()> is_cancelled;
    std::function<void()> arrived;  // there are more borrowed bytes
  };
  Status borrow(const BorrowOptions& options);

 private:
  PageFile(std::string path, UniqueFd file, std::unique_ptr<BorrowedFile> borrowed)
      : path_(std::move(path)), file_(std::move(file)), borrowed_(std::move(borrowed)) {}
  Status await_seal(const BorrowOptions& options);

  const std::string path_;
  const UniqueFd file_;
  const std::unique_ptr<BorrowedFile> borrowed_;  // null: in no ppmr mount
  std::atomic<bool> is_lent_ = false;
  std::atomic<bool> is_complete_ = false;
};

}  // namespace ppmr
