// The file that has the bytes of missing pages: a pages file of CRIU, or a memory file
// (processes/memory). This process borrows the bytes of a memory file from the target's daemon when
// they have arrived (borrowed_file.h). Reading borrowed bytes needs neither the daemon nor a system
// call.
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

// Threads: any thread may read, also during borrow(); only one may call borrow().
class PageFile {
 public:
  static Result<std::shared_ptr<PageFile>> open(const std::string& path);

  // Returns the bytes at `offset`. The pointer leads to the file's own memory if the bytes are
  // there in one piece, else to a copy in `scratch`. Blocks while the bytes have not arrived. The
  // pointer is valid as long as this object and `scratch`. Errors: EIO; those of the file system.
  Result<const std::byte*> read(uint64_t offset, size_t length_bytes, std::byte* scratch) const;

  // Returns whether a read does not wait: the bytes are borrowed, or borrow() has returned.
  bool has_arrived(uint64_t offset, size_t length_bytes) const;

  // Waits until the file is sealed, then borrows its bytes. With `early`, borrows bytes as soon as
  // they arrive. Does nothing for a file that is in no ppmr mount, or that its mount cannot lend.
  // Errors: ECANCELED when `is_cancelled` returns true, which is called at least every 100 ms;
  // those of the checkpoint.
  struct BorrowOptions {
    bool early = false;
    std::function<bool()> is_cancelled;
    std::function<void()> arrived;  // called when there are more borrowed bytes
  };
  Status borrow(const BorrowOptions& options);

 private:
  PageFile(std::string path, UniqueFd file, std::unique_ptr<BorrowedFile> borrowed)
      : path_(std::move(path)), file_(std::move(file)), borrowed_(std::move(borrowed)) {}
  Status await_seal(const BorrowOptions& options);

  const std::string path_;
  const UniqueFd file_;
  const std::unique_ptr<BorrowedFile> borrowed_;  // null: the file is in no ppmr mount
  std::atomic<bool> is_lent_ = false;
  std::atomic<bool> is_complete_ = false;
};

}  // namespace ppmr
