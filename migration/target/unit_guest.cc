#include "migration/target/unit_guest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "base/exit_code.h"
#include "daemon/command_line/output.h"
#include "migration/records/record_store.h"
#include "migration/relay/unit_fate.h"
#include "migration/relay/unit_step.h"
#include "processes/control_groups.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kTarget;
constexpr milliseconds kWait{100};
// How long this process waits for supervisors: one that stays as the parent of its tree does not
// end.
constexpr milliseconds kSupervisorPatience{5000};
constexpr milliseconds kInterval{20};
constexpr milliseconds kNotifyPatience{10'000};
constexpr milliseconds kSystemctlPatience{30'000};

void log(const std::string& sentence) { print_to(stderr, "{}\n", sentence); }

// Moves the processes into the control group that systemd has made for the unit: this process's
// own.
void attach(const OwnershipRecord& record) {
  const auto group = unified_group_of(getpid());
  if (!group) return log(group.error().message);
  for (const TreeRecord& tree : record.trees) {
    const auto tasks = tasks_of_tree(tree.root);
    if (!tasks) continue;
    for (const ProcessIdentity& task : *tasks) {
      std::ofstream file(group->path + "/cgroup.procs");
      file << task.pid << std::flush;
      if (!file) log(fmt::format("cannot move process {} into {}", task.pid, group->path));
    }
  }
}

Status notify(const std::string& text) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || strlen(path) >= sizeof address.sun_path) {
    return failure(EINVAL, "systemd gave no NOTIFY_SOCKET");
  }
  strcpy(address.sun_path, path);
  if (path[0] == '@') address.sun_path[0] = 0;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + strlen(path) +
                                             (path[0] == '@' ? 0 : 1));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (sendto(socket.get(), text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&address),
             length) < 0) {
    return system_failure("notify", "systemd");
  }
  return {};
}

// The directory may belong to the user of the service, so a link in it is not followed.
void write_pid_file(const std::string& path, const std::string& pid) {
  unlink(path.c_str());
  const UniqueFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  const std::string line = pid + "\n";
  if (!file || write(file.get(), line.data(), line.size()) < 0) {
    log(fmt::format("cannot write {}: {}", path, strerror(errno)));
  }
}

// Names the first tree's root as the main process, and waits until systemd shows it as such.
Status hand_to_systemd(const OwnershipRecord& record) {
  const std::string main = std::to_string(record.trees.front().root);
  if (const auto file = unit_property(record.unit.name, "PIDFile"); file && !file->empty()) {
    write_pid_file(*file, main);
  }
  if (Status sent = notify("MAINPID=" + main + "\nREADY=1\n"); !sent) return sent;
  const auto deadline = Clock::now() + kNotifyPatience;
  for (;;) {
    const auto known = unit_property(record.unit.name, "MainPID");
    if (known && *known == main) return {};
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, "systemd does not take process " + main + " as the main process");
    }
    std::this_thread::sleep_for(kInterval);
  }
}

bool is_supervised(const OwnershipRecord& record) {
  return std::any_of(record.trees.begin(), record.trees.end(),
                     [](const TreeRecord& tree) { return is_alive(tree.supervisor); });
}

// Returns false if systemd does not take over. This process must not end then: systemd would end
// the other processes of the unit with it.
bool adopt(const OwnershipRecord& record) {
  attach(record);
  if (Status handed = hand_to_systemd(record); !handed) {
    log(handed.error().message);
    return false;
  }
  if (Status forgotten = forget_unit_at_target(record); !forgotten) {
    log(forgotten.error().message);
  }
  if (record.unit.enabled) {
    (void)run_successfully({"systemctl", "--quiet", "enable", record.unit.name},
                           kSystemctlPatience);
  }
  return true;
}

}  // namespace

int UnitGuestCommand::run() const {
  ignore_sigpipe();
  const auto store = RecordStore::open(state_directory);
  if (!store) return log(store.error().message), to_int(ExitCode::kFailure);
  uint64_t seen = 0;
  bool attached = false;
  std::optional<Clock::time_point> complete_since;
  for (;;) {
    const auto record = seen == 0 ? store->read(id, kRole) : store->wait(id, kRole, seen, kWait);
    if (!record) {
      log(record.error().message);
      if (!attached) return to_int(ExitCode::kFailure);
      std::this_thread::sleep_for(kNotifyPatience);
      continue;
    }
    seen = record->version;
    if (forget) {
      return to_int(forget_unit_at_target(*record) ? ExitCode::kSuccess : ExitCode::kFailure);
    }
    if (record->all_trees(TreePhase::kComplete) && !complete_since) complete_since = Clock::now();
    const bool stays = complete_since && Clock::now() - *complete_since > kSupervisorPatience;
    switch (guest_step(*record, attached, is_supervised(*record) && !stays)) {
      case GuestStep::kWait:
        break;
      case GuestStep::kAttach:
        attach(*record);
        attached = true;
        break;
      case GuestStep::kAdopt:
        if (adopt(*record)) return to_int(ExitCode::kSuccess);
        break;
      case GuestStep::kEnd:
        // Stops the unit, which then becomes inactive. If this main process ended first, the unit
        // would have failed.
        (void)run_successfully({"systemctl", "--quiet", "stop", "--no-block", record->unit.name},
                               kSystemctlPatience);
        pause();
    }
  }
}

}  // namespace ppmr
