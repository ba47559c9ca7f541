#include "restart_loader/images/pstree_image.h"

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kPstreeMagic = 0x50273030;  // from criu/include/magic.h

}  // namespace

Result<Parents> read_pstree(const std::string& path) {
  auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  return parse_pstree(path, std::move(*bytes));
}

Result<Parents> parse_pstree(const std::string& path, std::string bytes) {
  auto image = ImageReader::of(path, std::move(bytes), kPstreeMagic);
  if (!image) return failure(image.error());
  Parents parents;
  while (!image->at_end()) {
    criu::pstree_entry task;
    if (Status read = image->read(task); !read) return failure(read.error());
    parents[static_cast<pid_t>(task.pid())] = static_cast<pid_t>(task.ppid());
  }
  return parents;
}

}  // namespace ppmr
