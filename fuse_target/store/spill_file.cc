#include "fuse_target/store/spill_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace ppmr {

SpillFile::SpillFile(UniqueFd file, std::shared_ptr<std::atomic<uint64_t>> spilled_bytes)
    : file_(std::move(file)), spilled_bytes_(std::move(spilled_bytes)) {}

SpillFile::~SpillFile() { *spilled_bytes_ -= counted_bytes_.load(); }

Status SpillFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_failure("write", "spill file", written < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  count();
  return {};
}

Status SpillFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("read", "spill file");
    if (count == 0) {
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      return {};
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

void SpillFile::punch_hole(uint64_t offset, uint64_t length_bytes) {
  // Only to give disk space back: what a reader sees is decided by what arrived.
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(length_bytes));
  count();
}

uint64_t SpillFile::disk_bytes() const {
  struct stat attributes {};
  if (::fstat(file_.get(), &attributes) != 0) return counted_bytes_;
  return static_cast<uint64_t>(attributes.st_blocks) * 512;
}

void SpillFile::count() {
  const uint64_t now = disk_bytes();
  *spilled_bytes_ += now - counted_bytes_.exchange(now);  // modulo 2^64: right in any order
}

Result<std::unique_ptr<SpillDirectory>> SpillDirectory::open(const std::string& path) {
  std::unique_ptr<SpillDirectory> directory(new SpillDirectory(path));
  if (auto tried = directory->create_file(); !tried) return failure(tried.error());
  return directory;
}

Result<std::shared_ptr<SpillFile>> SpillDirectory::create_file() const {
  UniqueFd file(::open(path_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file && (errno == EOPNOTSUPP || errno == EISDIR)) {  // not every file system has O_TMPFILE
    std::string name = path_ + "/ppmr-spill-XXXXXX";
    file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (file) ::unlink(name.c_str());
  }
  if (!file) return system_failure("make a spill file in", path_);
  return std::make_shared<SpillFile>(std::move(file), spilled_bytes_);
}

uint64_t SpillDirectory::free_bytes() const {
  struct statvfs attributes {};
  if (::statvfs(path_.c_str(), &attributes) != 0) return 0;
  return uint64_t{attributes.f_bavail} * attributes.f_frsize;
}

}  // namespace ppmr
