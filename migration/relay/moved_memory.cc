#include "migration/relay/moved_memory.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "mount/mount_table.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{2000};
// While the source sends memory, the daemon answers a request to seal it only after this time.
constexpr milliseconds kSealPatience{1000};
constexpr milliseconds kInterval{100};

// Like needs_frozen_pages(), but nullopt if the daemon does not answer. A daemon that is stopped
// may continue later.
std::optional<bool> ask_for_need(const OwnershipRecord& record, const TreeRecord& tree) {
  if (!record.plan.may_run_before_memory()) return false;
  const std::string memory = memory_checkpoint(record.plan, tree);
  const auto mount = find_mount(record.mountpoint);
  if (!mount) return mount.error().errno_value != ENODEV;
  const std::string& daemon = mount->mount.source;
  // The daemon refuses this request while the source sends the memory.
  (void)call(daemon, to_request(request::Commit{memory, {}}), kSealPatience);
  const auto status = call(daemon, to_request(request::Status{}), kPatience);
  if (!status) {
    const int error = status.error().errno_value;
    if (error == ECONNREFUSED || error == ENOENT) return false;
    return std::nullopt;
  }
  for (const json& checkpoint : status->value("checkpoints", json::array())) {
    if (checkpoint.value("name", "") == memory) return checkpoint.value("state", "") == "open";
  }
  return false;
}

}  // namespace

bool needs_frozen_pages(const OwnershipRecord& record, const TreeRecord& tree) {
  return ask_for_need(record, tree).value_or(true);
}

void wait_for_peer(const OwnershipRecord& record, const TreeRecord& tree) {
  if (!record.plan.may_run_before_memory()) return;
  const auto mount = find_mount(record.mountpoint);
  if (!mount) return;
  (void)call(mount->mount.source,
             to_request(request::WaitForPeer{memory_checkpoint(record.plan, tree),
                                             milliseconds(record.hold_limit_ms)}),
             kPatience);
}

void await_memory_moved(const OwnershipRecord& record, const TreeRecord& tree,
                        std::optional<milliseconds> silence_max) {
  wait_for_peer(record, tree);
  auto answered_at = Clock::now();
  for (;;) {
    const auto needed = ask_for_need(record, tree);
    if (needed && !*needed) return;
    if (needed) answered_at = Clock::now();
    if (silence_max && Clock::now() - answered_at > *silence_max) return;
    std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace ppmr
