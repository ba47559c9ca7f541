#include "migration/target/takeover.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/clock.h"
#include "migration/records/source_name.h"
#include "migration/relay/audit_events.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/source_driver.h"
#include "migration/relay/target_driver.h"
#include "migration/relay/unit_fate.h"
#include "migration/target/supervisors.h"
#include "processes/frozen_tasks.h"
#include "processes/proc_files.h"
#include "processes/process_identity.h"
#include "restart_loader/images/bound_sockets.h"
#include "restart_loader/images/open_files.h"
#include "restart_loader/images/pstree_image.h"
#include "restart_loader/images/tree_namespaces.h"

namespace ppmr {
namespace {

constexpr MigrationRole kRole = MigrationRole::kTarget;
// Nothing waits at the source, so only the time for a restore counts.
constexpr std::chrono::milliseconds kHoldLimit{120'000};
constexpr std::chrono::milliseconds kAbortPatience{10'000};
constexpr std::chrono::milliseconds kCommandSilence{10'000};

OwnershipRecord record_of(const EpochState& state, const SealedEpoch& epoch) {
  OwnershipRecord record;
  record.id = random_migration_id();
  record.role = kRole;
  record.peer = state.peer;
  record.peer_node_id = state.tree.node_id;
  record.endpoint = nlohmann::json::object();
  record.node_id = read_node_id();
  record.boot_id = read_boot_id();
  record.mountpoint = state.mountpoint;
  record.audit_file = state.audit_file;
  record.hold_limit_ms = kHoldLimit.count();
  record.criu_options = state.criu_options;
  record.restart_policy = state.restart_policy;
  record.unit = state.manager.unit;
  TreeRecord tree;
  tree.root = state.tree.root;
  tree.root_start_time = state.tree.root_start_time;
  tree.name = state.tree.program;
  tree.checkpoint = state.name;
  tree.container = state.manager.container;
  tree.protected_as = state.name;
  tree.epoch = epoch.number;
  tree.bytes = epoch.bytes;
  record.trees.push_back(std::move(tree));
  return record;
}

// Removes the sizes of files from the images: CRIU refuses a file whose size has changed since the
// dump, and the tree has run on and written.
Status forget_sizes(const std::string& epoch) {
  const std::string image = epoch + "/images/files.img";
  const std::string changed = epoch + "/files.img";
  if (Status written = write_without_sizes(image, changed); !written) return written;
  if (rename(changed.c_str(), image.c_str()) == 0) return {};
  return system_failure("replace", image);
}

// Waits for the supervisor of an aborted restore, which may still have the pids.
void await_supervisor(const RecordStore& records, const std::string& id) {
  const auto record = records.read(id, kRole);
  if (!record || record->state() != MigrationState::kAborted) return;
  if (const auto supervisor = FrozenTasks::open({record->trees.front().supervisor})) {
    (void)supervisor->await_end(kAbortPatience);
  }
}

std::string epoch_directory(const EpochState& state, uint64_t number) {
  return fmt::format("{}/{}/epoch-{}", kEpochsDirectory, state.name, number);
}

Status expect_manager(const OwnershipRecord& record, const std::string& state_directory) {
  if (Status expected = expect_container_at_target(record, record.trees.front()); !expected) {
    return expected;
  }
  return expect_unit_at_target(record, state_directory);
}

Status check_pids(const EpochState& state, const TreeTasks& tasks) {
  for (const pid_t id : tasks.ids) {
    const auto other = read_process_file(id, "comm");  // also of a thread
    if (!other) continue;
    return failure(EEXIST,
                   fmt::format("pid {} of {} is taken here by {}: a copy has the pids of its "
                               "original. Choose another node, or end that process (perhaps an "
                               "earlier copy)",
                               id, state.name, other->substr(0, other->find('\n'))));
  }
  return {};
}

// Checks that this node can give a copy the pids and addresses of the tree. A container has pids
// and, normally, a network of its own.
Status check_shared(const EpochState& state, const std::string& images) {
  if (!state.manager.container.name.empty()) return {};
  const auto tasks = read_tasks(images + "/pstree.img");
  if (!tasks) return failure(tasks.error());
  const auto namespaces = read_namespaces(images, tasks->root);
  if (!namespaces) return failure(namespaces.error());
  if (!namespaces->has_own_pids) {
    if (Status free = check_pids(state, *tasks); !free) return free;
  }
  const auto sockets = read_bound_sockets(images + "/files.img", namespaces->node_network);
  if (!sockets) return failure(sockets.error());
  for (const BoundSocket& socket : *sockets) {
    const Status free = check_free(socket);
    if (!free) {
      return failure(free.error().errno_value, fmt::format("{} cannot be copied to this node: {}",
                                                           state.name, free.error().message));
    }
  }
  return {};
}

// Returns whether a copy is abandoned. Call it under the lock of the copy.
bool is_abandoned(const RecordStore& records, const LockedEpochs& copy) {
  if (copy.exists()) {
    const auto takeover = takeover_state(records, copy.state());
    return takeover && is_abandoned_copy(copy.state(), *takeover);
  }
  // An older version of ppmr may have protected a process under this name.
  return !copy.may_be_on_disk();
}

// Returns whether the command that makes this copy has ended: no program then decides about the
// copy. A living command notes its contact all the time.
bool has_lost_its_command(const RecordStore& records, const LockedEpochs& copy) {
  const EpochState& state = copy.state();
  const auto takeover = takeover_state(records, state);
  if (!takeover || !state.is_copy) return false;
  if (judge_source(*takeover) != SourceMay::kGoOnAfterAbort) return false;
  const auto record = std::filesystem::path(records.work_path(state.takeover, kRole, 0));
  struct stat contact {};
  if (stat(record.parent_path().c_str(), &contact) != 0) return false;
  const std::chrono::nanoseconds silent(realtime_ns() - contact.st_mtim.tv_sec * 1'000'000'000 -
                                        contact.st_mtim.tv_nsec);
  return silent > kCommandSilence;
}

// Starts the restore of an epoch. `locked`: the epochs of the tree; the caller has checked that one
// of them may be taken over. `number`: of this epoch; 0: the newest one.
Result<OwnershipRecord> begin(const RecordStore& records, LockedEpochs& locked, uint64_t number) {
  EpochState state = locked.state();
  const auto epoch = find_epoch(state, number);
  if (!epoch) return failure(epoch.error());
  if (Status forgotten = forget_sizes(locked.epoch_directory(epoch->number)); !forgotten) {
    return failure(forgotten.error());
  }
  auto created = records.create(record_of(state, *epoch));
  if (!created) return created;
  state.takeover = created->id;
  if (Status written = locked.write(state); !written) {
    (void)take_target_step(records, created->id, target_event::Abort{written.error().message});
    return failure(written.error());
  }
  if (Status expected = expect_manager(*created, records.directory()); !expected) {
    (void)take_target_step(records, created->id, target_event::Abort{expected.error().message});
    return failure(ECHILD, expected.error().message);
  }
  if (Status started = start_supervisor(records, created->id, 0); !started) {
    (void)take_target_step(records, created->id,
                           target_event::Failed{.tree = 0, .error = started.error().message});
    return failure(ECHILD, started.error().message);
  }
  audit_migration(*created, "takeover-begun",
                  {{"protected_as", state.name}, {"epoch", epoch->number}});
  return created;
}

}  // namespace

Result<LockedEpochs> prepare_copy(const RecordStore& records, const EpochStore& epochs,
                                  const std::string& name, uint64_t number) {
  const auto from = epochs.lock(name);
  if (!from) return failure(from.error());
  if (!from->exists()) return failure(ENOENT, "no process is protected as '" + name + "' here");
  const EpochState& state = from->state();
  const auto taken = takeover_state(records, state);
  if (!taken) return failure(taken.error());
  if (Status kept = check_takeover(state, *taken, number); !kept) return failure(kept.error());
  if (Status may = check_copy(state, number, std::nullopt, std::nullopt); !may) {
    return failure(may.error());
  }
  auto to = epochs.lock(copy_name(name));
  if (!to) return failure(to.error());
  if (to->exists()) {
    const auto takeover = takeover_state(records, to->state());
    if (!takeover) return failure(takeover.error());
    if (Status may = check_copy(state, number, to->state(), *takeover); !may) {
      return failure(may.error());
    }
    const pid_t pid = find_running_copy(records, epochs, name);
    if (pid != 0 && *takeover != MigrationState::kFinished) {
      return failure(EBUSY, fmt::format("a copy of {} (pid {}) still reads its memory from its "
                                        "epoch: try again when migration {} has finished (ppmr "
                                        "history)",
                                        name, pid, to->state().takeover));
    }
    if (!to->state().takeover.empty()) await_supervisor(records, to->state().takeover);
  } else if (const auto on_disk = to->on_disk();
             !on_disk && on_disk.error().errno_value != ENOENT) {
    return failure(on_disk.error());
  } else if (on_disk) {
    return failure(EEXIST, fmt::format("{0} is the name of another process, whose epoch is on the "
                                       "disk: run ppmr takeover {0} --discard",
                                       copy_name(name)));
  }
  const auto epoch = find_epoch(state, number);
  if (!epoch) return failure(epoch.error());
  const std::string images = from->epoch_directory(epoch->number) + "/images";
  if (Status shared = check_shared(state, images); !shared) {
    if (is_abandoned(records, *to)) (void)to->discard();
    return failure(shared.error());
  }
  const EpochState copy = copy_of(state, *epoch, random_migration_id());
  if (Status copied = copy_epoch(*from, *to, copy); !copied) {
    (void)to->discard();
    return failure(copied.error());
  }
  to->note_contact();
  return to;
}

Result<OwnershipRecord> begin_copy(const RecordStore& records, const EpochStore& epochs,
                                   const std::string& name, uint64_t number) {
  auto copy = prepare_copy(records, epochs, name, number);
  if (!copy) return failure(copy.error());
  auto begun = begin(records, *copy, 0);
  if (!begun && is_abandoned(records, *copy)) (void)copy->discard();
  return begun;
}

void discard_abandoned_copies(const RecordStore& records, const EpochStore& epochs) {
  for (const std::string& name : epochs.copies()) {
    auto copy = epochs.try_lock(name);
    if (!copy) continue;
    if (has_lost_its_command(records, *copy)) {
      abandon_takeover(records, copy->state().takeover, "the command that made the copy has ended");
    }
    if (!is_abandoned(records, *copy)) continue;
    const EpochState state = copy->state();
    if (!state.takeover.empty()) await_supervisor(records, state.takeover);
    if (Status gone = copy->discard(); !gone) continue;
    audit(state.audit_file, "epochs", {{"outcome", "discarded"}, {"protected_as", name}});
  }
}

pid_t find_running_copy(const RecordStore& records, const EpochStore& epochs,
                        const std::string& name) {
  const auto copy = epochs.read(copy_name(name));
  if (!copy || !copy->is_copy || copy->takeover.empty()) return 0;
  const auto record = records.read(copy->takeover, kRole);
  if (!record || judge_source(record->state()) != SourceMay::kNotRun) return 0;
  const TreeRecord& tree = record->trees.front();
  const auto runs = std::find_if(tree.tasks.begin(), tree.tasks.end(), is_alive);
  return runs == tree.tasks.end() ? 0 : runs->pid;
}

Result<std::vector<ChangedFile>> changed_files(const EpochState& state, uint64_t number) {
  const std::string directory = epoch_directory(state, number);
  const auto files = load_written_files(directory + "/images/" + kWrittenFilesFile);
  if (!files) return failure(files.error());
  std::vector<ChangedFile> changed;
  for (const WrittenFile& file : *files) {
    struct stat now {};
    if (stat(file.path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) continue;
    if (!has_changed(file, now)) continue;
    const auto now_bytes = static_cast<uint64_t>(now.st_size);
    if (changed.size() == kChangedFilesMax) break;
    const bool can_be_cut =
        file.is_appended && now_bytes > file.size_bytes && open_to_cut(file).has_value();
    changed.push_back({file, now_bytes, can_be_cut});
  }
  return changed;
}

Result<std::optional<MigrationState>> takeover_state(const RecordStore& records,
                                                     const EpochState& state) {
  if (state.takeover.empty()) return std::nullopt;
  const auto record = records.read(state.takeover, kRole);
  if (record) return record->state();
  const bool is_lost = has_lost_record(records, state);
  if (const auto known = judge_without_record(state, is_lost)) return known;
  const std::string remedy =
      is_lost ? fmt::format(
                    ". If its process does not run here, run ppmr takeover {} --discard "
                    "here: its source then goes on",
                    state.name)
              : "";
  return failure(EAGAIN, fmt::format("this node cannot tell what became of migration {}, which "
                                     "takes {} over: {}{}",
                                     state.takeover, state.name, record.error().message, remedy));
}

bool has_lost_record(const RecordStore& records, const EpochState& state) {
  std::error_code failed;
  return !state.takeover.empty() &&
         !std::filesystem::exists(records.path_of(state.takeover, kRole), failed) && !failed;
}

Result<std::string> find_taken_over(const RecordStore& records, const std::string& name,
                                    const std::string& peer, const ProtectedTree& tree) {
  const auto unknown = [&](const Error& why) {
    return Error{EAGAIN, fmt::format("this node cannot tell whether it has taken {} over: {}", name,
                                     why.message)};
  };
  const auto is_of_tree = [&](const OwnershipRecord& record) {
    const TreeRecord& taken = record.trees.front();
    return is_same_source({record.peer, record.peer_node_id}, {peer, tree.node_id}) &&
           taken.protected_as == name && taken.root == tree.root &&
           taken.root_start_time == tree.root_start_time;
  };
  const auto all = records.list();
  if (!all) return failure(unknown(all.error()));
  for (const OwnershipRecord& record : *all) {
    const bool has_taken = judge_source(record.state()) == SourceMay::kNotRun;
    if (record.role == kRole && has_taken && is_of_tree(record)) return record.id;
  }
  const auto unreadable = records.list_unreadable(kRole);
  if (!unreadable) return failure(unknown(unreadable.error()));
  for (const UnreadableRecord& record : *unreadable) {
    if (!record.earlier || is_of_tree(*record.earlier)) return failure(unknown(record.error));
  }
  return std::string();
}

Result<OwnershipRecord> begin_takeover(const RecordStore& records, const EpochStore& epochs,
                                       const std::string& name, uint64_t number) {
  const auto known = epochs.read(name);
  if (!known) return failure(known.error());
  if (!known->takeover.empty()) await_supervisor(records, known->takeover);
  auto locked = epochs.lock(name);
  if (!locked) return failure(locked.error());
  const EpochState& state = locked->state();
  const auto takeover = takeover_state(records, state);
  if (!takeover) return failure(takeover.error());
  if (Status possible = check_takeover(state, *takeover, number); !possible) {
    return failure(possible.error());
  }
  if (judge_source(*takeover) == SourceMay::kGoOnAfterAbort) {
    return records.read(state.takeover, kRole);
  }
  return begin(records, *locked, number);
}

Result<OwnershipRecord> decide_takeover(const RecordStore& records, const EpochStore& epochs,
                                        const std::string& name, const std::string& id,
                                        bool cuts_files) {
  auto locked = epochs.lock(name);
  if (!locked) return failure(locked.error());
  if (locked->state().takeover != id) {
    return failure(ECANCELED, "the source has sent a request in the meantime, so it is alive");
  }
  const auto ready = records.read(id, kRole);
  if (!ready) return ready;
  // Cuts the files before the decision, although the decision may still fail. The hook lets the
  // tree run as soon as the record has the decision. After that, a cut could remove what the tree
  // has appended.
  if (cuts_files && ready->state() == MigrationState::kReady) {
    const auto changed = changed_files(locked->state(), ready->trees.front().epoch);
    if (!changed) return failure(changed.error());
    for (const ChangedFile& file : *changed) {
      if (!file.can_be_cut) continue;
      if (Status done = cut_back(file.noted); !done) return failure(done.error());
    }
  }
  auto step = take_target_step(records, id, target_event::SourceIsGone{.run_here = true});
  if (!step) return failure(step.error());
  return std::move(step->record);
}

void abandon_takeover(const RecordStore& records, const std::string& id, const std::string& why) {
  (void)take_target_step(records, id, target_event::Abort{why});
  await_supervisor(records, id);
}

Status forget_epochs(const EpochStore& epochs, const std::string& name, const std::string& id) {
  auto locked = epochs.lock(name);
  if (!locked) return failure(locked.error());
  EpochState state = locked->state();
  if (state.takeover != id) return {};
  if (state.rolls_back) {
    state.takeover.clear();
    return locked->write(state);
  }
  const Status removed = locked->remove_epochs();
  state.completed_takeover = id;
  const Status noted = locked->write(state);
  return removed ? noted : removed;
}

}  // namespace ppmr
