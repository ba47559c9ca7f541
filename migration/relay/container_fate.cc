#include "migration/relay/container_fate.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "preflight/policy/check_restart.h"
#include "preflight/policy/restart_policy.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/relay_marks.h"

namespace ppmr {

namespace {

// `runc list` fails while runc removes any container.
constexpr int kTries = 5;
constexpr std::chrono::milliseconds kBetweenTries{200};

// If CRIU was killed, the container's port stays detached from its bridge. If CRIU had frozen the
// control group, the group stays frozen, too.
Status undo_dump(const Runc& runc, const ContainerState& state) {
  const Status resumed = state.status == "paused" ? runc.resume(state.name) : Status{};
  const auto port = read_container_port(state.bundle);
  if (!port) return failure(port.error());
  const Status attached = port->exists() ? port->attach() : Status{};
  return resumed ? attached : resumed;
}

Result<std::vector<PresentContainer>> list_containers(const Runc& runc) {
  const auto names = runc.list();
  if (!names) return failure(names.error());
  std::vector<PresentContainer> present;
  for (const std::string& name : *names) {
    if (!is_container_name(name)) continue;  // runc has printed a warning
    const auto state = runc.state(name);
    if (!state && state.error().errno_value == ENOENT) continue;  // removed in the meantime
    if (!state) return failure(state.error());
    // A bundle without a readable configuration names no port.
    const auto port = read_container_port(state->bundle);
    present.push_back({name, state->status, state->bundle, port ? port->interface : ""});
  }
  return present;
}

Result<std::vector<PresentContainer>> containers_here() {
  const auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  auto present = list_containers(*runc);
  for (int tries = 1; !present && tries < kTries; ++tries) {
    std::this_thread::sleep_for(kBetweenTries);
    present = list_containers(*runc);
  }
  return present;
}

}  // namespace

Status settle_container_at_source(const OwnershipRecord& record, const TreeRecord& tree) {
  const ContainerRecord& container = tree.container;
  if (container.name.empty()) return {};
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  const auto state = runc->state(container.name);
  if (!state && state.error().errno_value == ENOENT) return {};  // runc checkpoint has removed it
  if (!state) return failure(state.error());
  if (state->created != container.created) return {};  // a newer container of the same name
  if (record.state() == MigrationState::kAborted) return undo_dump(*runc, *state);
  const bool committed =
      record.state() == MigrationState::kCommitted || record.state() == MigrationState::kFinished;
  return committed ? runc->remove(container.name) : Status{};
}

Status check_cut(const ContainerRecord& arriving, const ContainerPort& port,
                 const std::vector<PresentContainer>& present) {
  for (const PresentContainer& other : present) {
    if (other.status == "stopped") continue;
    const bool is_same = other.name == arriving.name || other.bundle == arriving.bundle;
    if (!is_same && other.port != port.interface) continue;
    return failure(
        EBUSY, fmt::format("detach the port {} of the container {} at the target: the container "
                           "{} with the bundle {} is {} there and has the same name, bundle or "
                           "port. Move or remove that container first",
                           port.interface, arriving.name, other.name, other.bundle, other.status));
  }
  return {};
}

Status expect_container_at_target(const OwnershipRecord& record, const TreeRecord& tree) {
  const ContainerRecord& container = tree.container;
  if (container.name.empty()) return {};
  const auto policy = parse_restart_policy(record.restart_policy);
  if (!policy) return failure(policy.error());
  AnnouncedProcess announced;
  announced.bundle = container.bundle;
  if (Status accepted = check_announced(*policy, {announced}); !accepted) return accepted;
  const auto port = read_container_port(container.bundle);
  if (!port) return failure(port.error());
  if (!port->exists()) return {};
  const auto present = containers_here();
  if (!present) return failure(present.error());
  if (Status may = check_cut(container, *port, *present); !may) return may;
  return port->cut();
}

Status forget_container_at_target(const TreeRecord& tree, const std::string& work_directory) {
  const std::string& name = tree.container.name;
  // This function removes only a container that this restore created.
  const MadeContainer made = name.empty() ? MadeContainer::kNone : made_container(work_directory);
  if (made == MadeContainer::kNone) return {};
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  // If this restore's runc has not started CRIU yet, a container that runc lists is another one of
  // the same name.
  const bool is_ours = made == MadeContainer::kWhole || !runc->state(name);
  if (Status removed = is_ours ? runc->remove(name) : Status{}; !removed) return removed;
  forget_made_container(work_directory);
  return {};
}

}  // namespace ppmr
