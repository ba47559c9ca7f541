#include "restart_loader/pager/pstree_image.h"

#include "restart_loader/pager/criu_image.h"
#include "restart_loader/pager/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kPstreeMagic = 0x50273030;  // criu/include/magic.h

}  // namespace

Result<Parents> read_pstree(const std::string& path) {
  auto image = ImageReader::open(path, kPstreeMagic);
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
