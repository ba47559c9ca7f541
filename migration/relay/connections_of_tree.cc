#include "migration/relay/connections_of_tree.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "processes/connections_in_repair.h"
#include "processes/proc_files.h"
#include "restart_loader/criu/left_locks.h"
#include "restart_loader/criu/network_lock.h"

namespace ppmr {
namespace {

constexpr const char* kFilterRulesNote = "/filter-rules-of-criu";

// Returns the recorded tasks that are alive. If there are none, lists the tree: CRIU may have been
// killed before the record had its tasks.
std::vector<ProcessIdentity> present_tasks(const OwnershipRecord& record, const TreeRecord& tree) {
  std::vector<ProcessIdentity> tasks;
  for (const ProcessIdentity& task : tree.tasks) {
    if (is_alive(task)) tasks.push_back(task);
  }
  const ProcessIdentity root{tree.root, tree.root_start_time};
  if (!tasks.empty() || !check_identity(root, record.boot_id)) return tasks;
  return tasks_of_tree(tree.root).value_or(std::vector<ProcessIdentity>());
}

std::string mark_of_lock(const std::string& work_directory) {
  return work_directory + "/network-locked";
}

}  // namespace

Status note_network_lock(const std::string& work_directory) {
  const std::string path = mark_of_lock(work_directory);
  const UniqueFd mark(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  return mark ? Status{} : system_failure("create", path);
}

void forget_network_lock(const std::string& work_directory) {
  unlink(mark_of_lock(work_directory).c_str());
}

bool dumps_connections(const OwnershipRecord& record) {
  const auto& options = record.criu_options;
  return std::find(options.begin(), options.end(), "--tcp-established") != options.end();
}

// The note has the boot ID, because the rules end with the boot.
Status note_filter_rules(const std::string& state_directory) {
  const std::string path = state_directory + kFilterRulesNote;
  std::ofstream file(path);
  file << read_boot_id() << std::flush;
  return file ? Status{} : system_failure("write", path);
}

void remove_left_filter_rules(const RecordStore& store) {
  const std::string path = store.directory() + kFilterRulesNote;
  const auto boot = read_whole_file(path);
  if (!boot) return;
  // Reads the records before it removes rules: a migration that begins later writes the note again,
  // after its record.
  const auto open = store.list_unsettled(MigrationRole::kSource);
  const auto left = remove_unneeded_locks();
  const bool is_of_this_boot = read_boot_id().starts_with(*boot) && !boot->empty();
  const bool is_done = open && open->empty() && left && left->empty();
  if (!is_of_this_boot || is_done) unlink(path.c_str());
}

bool goes_on_here(const OwnershipRecord& record, const TreeRecord& tree) {
  // CRIU ended before its hook, and without the hook there is no decision.
  const bool was_never_held = tree.phase < TreePhase::kHeld;
  const bool never_moves = record.plan.original_goes_on || record.plan.is_rehearsal;
  return record.state() == MigrationState::kAborted || was_never_held || never_moves;
}

Status release_connections(const OwnershipRecord& record, const TreeRecord& tree,
                           const std::string& work_directory) {
  if (!goes_on_here(record, tree)) return {};
  const bool namespace_is_locked = access(mark_of_lock(work_directory).c_str(), F_OK) == 0;
  // Without --tcp-established, CRIU touches no connection, but locks a network namespace.
  if (!dumps_connections(record) && !namespace_is_locked) return {};
  const auto tasks = present_tasks(record, tree);
  if (tasks.empty()) return {};
  const auto connections = read_connections(tasks);
  if (!connections) return failure(connections.error());
  if (connections->empty() && !namespace_is_locked) return {};
  // Changes nothing while a CRIU holds the tree, which may be the CRIU of a later migration: it
  // puts the connections in order itself.
  const bool in_repair = std::any_of(connections->begin(), connections->end(),
                                     [](const TcpConnection& one) { return one.is_in_repair; });
  for (const ProcessIdentity& task : tasks) {
    const auto status = read_process_status(task.pid);
    if (!status || status->tracer == 0) continue;
    if (!in_repair && !namespace_is_locked) return {};
    return failure(EBUSY, "CRIU still holds process " + std::to_string(task.pid));
  }
  // Removes the rules first: a connection that is out of repair mode must not be locked.
  Status released = namespace_is_locked ? unlock_namespace_of(tasks.front().pid, work_directory)
                                        : unlock_connections(*connections, work_directory);
  for (const TcpConnection& connection : *connections) {
    if (!connection.is_in_repair) continue;
    if (Status ended = end_repair(connection); !ended) released = ended;
  }
  return released;
}

}  // namespace ppmr
