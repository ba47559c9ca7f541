#include "jobs/agent/node_mount.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "jobs/agent/evacuation.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kMountPatience{30};

void remove_mount(const std::string& path) {
  umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  rmdir(path.c_str());
}

}  // namespace

void NodeMount::remove(const EvacuationOptions& options, const std::string& name) {
  remove_mount(options.mounts + "/" + name);
}

Result<NodeMount> NodeMount::open(const EvacuationOptions& options, const std::string& name,
                                  const std::string& host) {
  remove(options, name);
  NodeMount mount(options.mounts + "/" + name);
  if (mkdir(mount.path_.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("create", mount.path_);
  }
  std::vector<std::string> argv = {options.program, "source", mount.path_, "--target",
                                   fmt::format("{}:{}", host, options.target_port)};
  for (const auto& words : {credential_words(options.credentials), options.source_options}) {
    argv.insert(argv.end(), words.begin(), words.end());
  }
  auto mounted = run_successfully(argv, kMountPatience);
  if (!mounted) return failure(mounted.error());
  return mount;
}

NodeMount::~NodeMount() {
  if (!path_.empty()) remove_mount(path_);
}

}  // namespace ppmr
