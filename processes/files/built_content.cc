#include "processes/files/built_content.h"

#include <fcntl.h>
#include <unistd.h>

namespace ppmr {

tl::unexpected<Error> write_failure(const char* what, const std::string& name) {
  if (errno == ENOSPC || errno == ENOMEM) {
    return failure(ENOSPC,
                   "the target has not enough memory for the files in memory of the processes");
  }
  return system_failure(what, name);
}

Status apply_content(const file_record::Size& size, int file) {
  if (ftruncate(file, static_cast<off_t>(size.bytes)) == 0) return {};
  return write_failure("set the size of", "a file in memory");
}

Status apply_content(const file_record::Data& data, int file) {
  std::string_view rest = data.bytes;
  auto offset = static_cast<off_t>(data.offset);
  while (!rest.empty()) {
    const ssize_t n = pwrite(file, rest.data(), rest.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return write_failure("write", "a file in memory");
    rest.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

Status apply_content(const file_record::Hole& hole, int file) {
  if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(hole.offset),
                static_cast<off_t>(hole.bytes)) == 0) {
    return {};
  }
  return write_failure("make a hole in", "a file in memory");
}

}  // namespace ppmr
