#include "processes/files/built_content.h"

#include <fcntl.h>
#include <unistd.h>

#include <span>

#include "base/whole_file.h"

namespace ppmr {

tl::unexpected<Error> write_failure(const char* what, const std::string& name, int errno_value) {
  if (errno_value == ENOSPC || errno_value == ENOMEM) {
    return failure(
        ENOSPC, "the target does not have enough memory for the files in memory of the processes");
  }
  return system_failure(what, name, errno_value);
}

Status apply_content(const file_record::Size& size, int file) {
  if (ftruncate(file, static_cast<off_t>(size.bytes)) == 0) return {};
  return write_failure("set the size of", "a file in memory");
}

Status apply_content(const file_record::Data& data, int file) {
  const std::string name = "a file in memory";
  const Status written = write_all(file, std::as_bytes(std::span(data.bytes)), data.offset, name);
  return written ? written : write_failure("write", name, written.error().errno_value);
}

Status apply_content(const file_record::Hole& hole, int file) {
  if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(hole.offset),
                static_cast<off_t>(hole.bytes)) == 0) {
    return {};
  }
  return write_failure("make a hole in", "a file in memory");
}

}  // namespace ppmr
