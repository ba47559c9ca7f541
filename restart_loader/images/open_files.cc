#include "restart_loader/images/open_files.h"

#include <fcntl.h>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

// From criu/include/magic.h and criu/include/file-lock.h.
constexpr uint32_t kFilesMagic = 0x56303138;
constexpr uint32_t kFileLocksMagic = 0x54323616;
constexpr uint32_t kLockOfProcess = 1;
constexpr uint32_t kLease = 8;

using IsKept = bool (*)(const criu::file_lock_entry&);

Status write_locks(const std::string& from, const std::string& to, IsKept is_kept) {
  auto bytes = read_whole_file(from);
  if (!bytes) return failure(bytes.error());
  auto image = ImageReader::of(from, std::move(*bytes), kFileLocksMagic);
  if (!image) return failure(image.error());
  ImageWriter written(kFileLocksMagic);
  while (!image->at_end()) {
    criu::file_lock_entry lock;
    if (Status read = image->read(lock); !read) return read;
    if (is_kept(lock)) written.add(lock);
  }
  return written.write(to);
}

}  // namespace

Status write_without_sizes(const std::string& from, const std::string& to) {
  auto bytes = read_whole_file(from);
  if (!bytes) return failure(bytes.error());
  auto image = ImageReader::of(from, std::move(*bytes), kFilesMagic);
  if (!image) return failure(image.error());
  ImageWriter written(kFilesMagic);
  while (!image->at_end()) {
    criu::file_entry file;
    if (Status read = image->read(file); !read) return read;
    if (file.has_reg() && (file.reg().flags() & O_ACCMODE) != O_RDONLY) {
      file.mutable_reg()->clear_size();
    }
    written.add(file);
  }
  return written.write(to);
}

Status write_without_description_locks(const std::string& from, const std::string& to) {
  return write_locks(from, to, [](const criu::file_lock_entry& lock) {
    return lock.flag() == kLockOfProcess || lock.flag() == kLease;
  });
}

Status write_leases(const std::string& from, const std::string& to) {
  return write_locks(from, to,
                     [](const criu::file_lock_entry& lock) { return lock.flag() == kLease; });
}

}  // namespace ppmr
