#include "restart_loader/migration/moved_memory.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "mount/control/control_client.h"
#include "mount/control/mount_table.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{2000};
// While memory is being sent, the daemon answers a request to seal it later than this.
constexpr milliseconds kSealPatience{1000};
constexpr milliseconds kInterval{100};

}  // namespace

bool needs_frozen_pages(const OwnershipRecord& record, const TreeRecord& tree) {
  if (!record.post_copy || tree.memory.empty()) return false;
  const auto mount = find_mount(record.mountpoint);
  if (!mount) return mount.error().errno_value != ENODEV;
  const std::string& daemon = mount->mount.source;
  // While the memory is being sent, the daemon refuses.
  (void)call(daemon, {{"op", "commit"}, {"checkpoint", tree.memory}}, kSealPatience);
  const auto status = call(daemon, {{"op", "status"}}, kPatience);
  if (!status) {
    const int error = status.error().errno_value;
    return error != ECONNREFUSED && error != ENOENT;  // a daemon that is stopped may go on
  }
  for (const json& checkpoint : status->value("checkpoints", json::array())) {
    if (checkpoint.value("name", "") == tree.memory) return checkpoint.value("state", "") == "open";
  }
  return false;
}

void await_memory_moved(const OwnershipRecord& record, const TreeRecord& tree) {
  while (needs_frozen_pages(record, tree)) std::this_thread::sleep_for(kInterval);
}

}  // namespace ppmr
