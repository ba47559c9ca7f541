#include "migration/source/rival.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "migration/source/protection_claim.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kSource;
constexpr milliseconds kLockPatience{5000};
constexpr milliseconds kLockInterval{20};

bool contains(const std::vector<ProcessIdentity>& tasks, const ProcessIdentity& task) {
  return std::find(tasks.begin(), tasks.end(), task) != tasks.end();
}

std::vector<ProcessIdentity> live_tasks_of(const ProcessIdentity& root) {
  if (!is_alive(root)) return {};
  return tasks_of_tree(root.pid).value_or(std::vector<ProcessIdentity>());
}

std::vector<ProcessIdentity> tasks_in(const TreeRecord& tree, const TasksOf& tasks_of) {
  const ProcessIdentity root{tree.root, tree.root_start_time};
  std::vector<ProcessIdentity> tasks = tasks_of(root);
  tasks.insert(tasks.end(), tree.tasks.begin(), tree.tasks.end());
  tasks.push_back(root);
  return tasks;
}

std::string time_since(int64_t began_ns, int64_t now_ns) {
  return fmt::format("{} s", std::max<int64_t>(now_ns - began_ns, 0) / 1'000'000'000);
}

// A coordinator holds this lock only while it creates a record, before it touches a process. Other
// coordinators wait for the lock with a time limit. So a coordinator that is stopped here blocks no
// program that holds a process.
Result<UniqueFd> lock_beginnings(const std::string& directory) {
  const std::string path = directory + "/beginning.lock";
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return system_failure("open", path);
  const auto deadline = Clock::now() + kLockPatience;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return system_failure("lock", path);
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, "another ppmr migrate is stopped while it begins (it holds " +
                                    path + "): continue or end it");
    }
    std::this_thread::sleep_for(kLockInterval);
  }
  return lock;
}

Status check_not_protected(const std::vector<ProcessIdentity>& roots) {
  std::vector<ProcessIdentity> wanted;
  for (const ProcessIdentity& root : roots) {
    const auto tasks = live_tasks_of(root);
    wanted.insert(wanted.end(), tasks.begin(), tasks.end());
  }
  const auto claim = find_protection(wanted, live_tasks_of);
  if (!claim) return failure(claim.error());
  // Accepts the claim of this process: `ppmr protect` also makes these checks, for a partner that
  // it reaches late.
  if (!*claim || (*claim)->protector == getpid()) return {};
  return failure(EALREADY, describe_protection(**claim));
}

// Checks that the roots have not moved: a process that has ended here may run at a target.
Status check_not_moved(const RecordStore& store, const OwnershipRecord& record) {
  for (const TreeRecord& tree : record.trees) {
    const ProcessIdentity root{tree.root, tree.root_start_time};
    if (is_alive(root)) continue;
    const auto records = store.list();
    if (!records) return failure(records.error());
    for (const OwnershipRecord& other : *records) {
      const bool moved = other.role == kRole && other.boot_id == record.boot_id &&
                         other.state() == MigrationState::kFinished && !other.plan.original_goes_on;
      if (!moved) continue;
      for (const TreeRecord& gone : other.trees) {
        if (ProcessIdentity{gone.root, gone.root_start_time} != root) continue;
        return failure(EALREADY, fmt::format("process {} ({}) has moved to {} with migration {}",
                                             gone.root, gone.name, other.peer, other.id));
      }
    }
  }
  return {};
}

}  // namespace

std::optional<OwnershipRecord> find_rival(const std::vector<OwnershipRecord>& records,
                                          const std::vector<ProcessIdentity>& roots,
                                          const std::string& boot_id, const TasksOf& tasks_of) {
  std::vector<ProcessIdentity> wanted;
  for (const ProcessIdentity& root : roots) {
    const auto tasks = tasks_of(root);
    wanted.insert(wanted.end(), tasks.begin(), tasks.end());
    wanted.push_back(root);
  }
  for (const OwnershipRecord& record : records) {
    if (record.role != kRole || record.boot_id != boot_id || is_over(record.state())) continue;
    for (const TreeRecord& tree : record.trees) {
      const auto moving = tasks_in(tree, tasks_of);
      const bool shared = std::any_of(wanted.begin(), wanted.end(),
                                      [&](const auto& task) { return contains(moving, task); });
      if (shared) return record;
    }
  }
  return std::nullopt;
}

std::string describe_rival(const OwnershipRecord& rival, int64_t now_ns) {
  std::string trees;
  for (const TreeRecord& tree : rival.trees) {
    trees += fmt::format("{}{} ({})", trees.empty() ? "" : ", ", tree.root, tree.name);
  }
  // In this state, the processes of a live move run until the last moment.
  const bool copies = rival.plan.is_live && rival.state() == MigrationState::kDumping;
  return fmt::format("migration {} moves process {}: {} for {}, begun {} ago by pid {}", rival.id,
                     trees, copies ? "copying memory" : to_string(rival.state()),
                     time_since(rival.history().back().at_ns, now_ns),
                     time_since(rival.history().front().at_ns, now_ns), rival.coordinator.pid);
}

Status check_rivals(const RecordStore& store, const std::vector<ProcessIdentity>& roots) {
  const auto open = store.list_unsettled(kRole);
  if (!open) return failure(open.error());
  const auto rival = find_rival(*open, roots, read_boot_id(), live_tasks_of);
  if (!rival) return check_not_protected(roots);
  const char* remedy =
      is_alive(rival->coordinator)
          ? "`ppmr migrations` shows how far it is, `ppmr migrate --cancel ID` ends it"
          : "its coordinator has ended: run `ppmr migrate --recover`";
  return failure(EALREADY, describe_rival(*rival, realtime_ns()) + "; " + remedy);
}

Result<OwnershipRecord> create_without_rivals(const RecordStore& store, OwnershipRecord record) {
  const auto lock = lock_beginnings(store.directory());
  if (!lock) return failure(lock.error());
  std::vector<ProcessIdentity> roots;
  for (const TreeRecord& tree : record.trees) roots.push_back({tree.root, tree.root_start_time});
  if (Status alone = check_rivals(store, roots); !alone) return failure(alone.error());
  if (Status here = check_not_moved(store, record); !here) return failure(here.error());
  return store.create(std::move(record));
}

}  // namespace ppmr
