#include "migration/relay/container_fate.h"

#include "restart_loader/containers/container_port.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/relay_marks.h"

namespace ppmr {

namespace {

// If CRIU was killed, the container's port stays detached from its bridge. If CRIU had frozen the
// control group, the group stays frozen, too.
Status undo_dump(const Runc& runc, const ContainerState& state) {
  const Status resumed = state.status == "paused" ? runc.resume(state.name) : Status{};
  const auto port = read_container_port(state.bundle);
  if (!port) return failure(port.error());
  const Status attached = port->exists() ? port->attach() : Status{};
  return resumed ? attached : resumed;
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

Status expect_container_at_target(const TreeRecord& tree) {
  if (tree.container.name.empty()) return {};
  auto port = read_container_port(tree.container.bundle);
  if (!port) return failure(port.error());
  return port->exists() ? port->cut() : Status{};
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
