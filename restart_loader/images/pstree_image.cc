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

// CRIU writes a parent before its children.
Result<TreeTasks> read_tasks(const std::string& path) {
  auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  auto image = ImageReader::of(path, std::move(*bytes), kPstreeMagic);
  if (!image) return failure(image.error());
  TreeTasks tasks;
  while (!image->at_end()) {
    criu::pstree_entry task;
    if (Status read = image->read(task); !read) return failure(read.error());
    const auto pid = static_cast<pid_t>(task.pid());
    if (tasks.ids.empty()) tasks.root = pid;
    tasks.ids.push_back(pid);
    for (const uint32_t id : task.threads()) {
      if (id != task.pid()) tasks.ids.push_back(static_cast<pid_t>(id));
    }
  }
  if (tasks.ids.empty()) return image->damaged("it has no process");
  return tasks;
}

}  // namespace ppmr
