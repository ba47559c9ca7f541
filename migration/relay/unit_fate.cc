#include "migration/relay/unit_fate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/own_path.h"
#include "base/whole_file.h"
#include "migration/relay/unit_step.h"
#include "preflight/systemd_unit.h"
#include "processes/proc_files.h"
#include "processes/relations.h"
#include "processes/sockets.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSystemctlPatience{30'000};
constexpr milliseconds kInactivePatience{10'000};
constexpr milliseconds kInterval{50};

constexpr const char* kPersistent = "/etc/systemd/system";
// The name sorts after those of other drop-ins, so that this drop-in overrides them.
constexpr const char* kFileName = "zz-ppmr-move.conf";
constexpr std::string_view kFirstWords = "# Written by ppmr for migration ";

std::string path_of(const OwnershipRecord& record) {
  const bool leaves = record.role == MigrationRole::kSource;
  return fmt::format("{}/{}.d/{}", leaves ? kPersistent : "/run/systemd/system", record.unit.name,
                     kFileName);
}

// The first line of a drop-in names its migration.
std::string first_lines(const OwnershipRecord& record) {
  return fmt::format(
      "{}{}\n# ppmr removes it when the migration is over: see ppmr migrate --recover.\n",
      kFirstWords, record.id);
}

// Returns the ID of the drop-in's migration; empty: the drop-in is missing, or ppmr did not write
// it.
std::string migration_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || !line.starts_with(kFirstWords)) return "";
  return line.substr(kFirstWords.size());
}

Status systemctl(const std::vector<std::string>& words) {
  std::vector<std::string> argv = {"systemctl", "--no-ask-password", "--quiet"};
  argv.insert(argv.end(), words.begin(), words.end());
  const auto done = run_successfully(argv, kSystemctlPatience);
  return done ? Status{} : failure(done.error());
}

Status check_name(const OwnershipRecord& record) {
  if (is_service_name(record.unit.name)) return {};
  return failure(EINVAL, "'" + record.unit.name + "' is not the name of a service");
}

Status install(const OwnershipRecord& record, const std::string& text) {
  const std::string path = path_of(record);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return system_failure("create the directory of", path, error.value());
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return system_failure("create", path);
  Status written = write_all(file, std::as_bytes(std::span(text)), 0, path);
  if (!written) return written;
  // syncfs() also makes the new directory durable.
  if (syncfs(file.get()) != 0) return system_failure("sync", path);
  return systemctl({"daemon-reload"});
}

// Returns whether this migration's drop-in is there; false if it is the drop-in of another
// migration.
bool is_installed(const OwnershipRecord& record) {
  return migration_of(path_of(record)) == record.id;
}

Status remove_drop_in(const OwnershipRecord& record) {
  if (!is_installed(record)) return {};
  const std::string path = path_of(record);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return system_failure("remove", path);
  rmdir(fs::path(path).parent_path().c_str());  // fails if there are other drop-ins
  return systemctl({"daemon-reload"});
}

std::string program_of(pid_t pid) {
  std::error_code error;
  return fs::read_symlink(fmt::format("/proc/{}/exe", pid), error);
}

// Replaces special characters, because the name of a process may have any.
std::string plain(const std::string& name) {
  std::string text;
  for (const char c : name) text += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return text;
}

bool is_down(const std::string& state) { return state == "inactive" || state == "failed"; }

Status await_down(const std::string& unit) {
  const auto deadline = Clock::now() + kInactivePatience;
  for (;;) {
    const auto state = unit_property(unit, "ActiveState");
    if (!state) return failure(state.error());
    if (is_down(*state)) return {};
    if (Clock::now() > deadline) {
      return failure(EBUSY,
                     fmt::format("{} is {} here although its processes have left", unit, *state));
    }
    std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace

Result<std::string> unit_property(const std::string& unit, const std::string& property) {
  auto value = run_successfully(
      {"systemctl", "show", "--no-pager", "--value", "--property=" + property, "--", unit},
      kSystemctlPatience);
  if (!value) return value;
  while (value->ends_with('\n')) value->pop_back();
  return value;
}

// ConditionPathExists keeps timers, sockets, dependencies and operators from starting the unit.
// WatchdogSec=0 keeps the watchdog from ending a service that was frozen for a moment.
std::string unit_drop_in_of_source(const OwnershipRecord& record) {
  return first_lines(record) + fmt::format(
                                   "[Unit]\n"
                                   "ConditionPathExists=!{}\n"
                                   "[Service]\n"
                                   "Restart=no\n"
                                   "RestartForceExitStatus=\n"
                                   "SuccessExitStatus=SIGKILL\n"
                                   "RemainAfterExit=no\n"
                                   "WatchdogSec=0\n"
                                   "ExecStop=\n"
                                   "ExecStopPost=\n",
                                   path_of(record));
}

// With +, the commands run as root and outside of the unit's sandbox. UnsetEnvironment removes the
// libraries that the unit preloads for its service: a library that shows ppmr another user would
// keep ppmr from its records.
std::string unit_drop_in_of_target(const OwnershipRecord& record, const std::string& program,
                                   const std::string& state_directory,
                                   const std::string& identifier) {
  const std::string command =
      fmt::format("+{} migration-unit --state-dir {} --id {}", program, state_directory, record.id);
  const std::string name =
      identifier.empty() ? "" : fmt::format("SyslogIdentifier={}\n", identifier);
  return first_lines(record) + fmt::format(
                                   "[Service]\n"
                                   "Type=notify\n"
                                   "NotifyAccess=all\n"
                                   "Restart=no\n"
                                   "RemainAfterExit=no\n"
                                   "TimeoutStartSec=infinity\n"
                                   "UnsetEnvironment=LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT\n"
                                   "{1}"
                                   "ExecCondition=\n"
                                   "ExecStartPre=\n"
                                   "ExecStartPost=\n"
                                   "ExecStop=\n"
                                   "ExecStart=\n"
                                   "ExecStart={0}\n"
                                   "ExecStopPost=\n"
                                   "ExecStopPost={0} --forget\n",
                                   command, name);
}

Status hold_unit_at_source(const OwnershipRecord& record) {
  if (record.unit.name.empty()) return {};
  if (Status named = check_name(record); !named) return named;
  return install(record, unit_drop_in_of_source(record));
}

Status retire_unit_at_source(const OwnershipRecord& record) {
  if (record.unit.name.empty()) return {};
  if (Status down = await_down(record.unit.name); !down) return down;
  if (record.unit.enabled) {
    if (Status disabled = systemctl({"disable", record.unit.name}); !disabled) return disabled;
  }
  return remove_drop_in(record);
}

Status settle_unit_at_source(const OwnershipRecord& record) {
  if (record.unit.name.empty()) return {};
  if (Status named = check_name(record); !named) return named;
  if (!is_installed(record)) return {};
  const SourceUnitStep step = source_unit_step(record, record.boot_id == read_boot_id());
  switch (step) {
    case SourceUnitStep::kHold:
      return {};
    case SourceUnitStep::kRestore:
    case SourceUnitStep::kRestoreAndStart:
      break;
    case SourceUnitStep::kRetire:
      return retire_unit_at_source(record);
  }
  if (Status removed = remove_drop_in(record); !removed) return removed;
  if (step != SourceUnitStep::kRestoreAndStart) return {};
  return systemctl({"start", "--no-block", record.unit.name});
}

void settle_units_at_source(const RecordStore& store) {
  std::vector<std::string> held;
  for (const auto& entry : list_directory(kPersistent).value_or(DirectoryEntries())) {
    if (!entry.path().filename().string().ends_with(".service.d")) continue;
    const std::string id = migration_of(entry.path() / kFileName);
    if (is_migration_id(id)) held.push_back(id);
  }
  for (const std::string& id : held) {
    const auto record = store.read(id, MigrationRole::kSource);
    if (!record) continue;  // it is in another state directory
    // An abort is not complete while CRIU may hold the processes.
    const bool over = is_over(record->state()) && record->is_settled();
    if (over) (void)settle_unit_at_source(*record);
  }
}

Status check_unit_is_free(const std::string& unit) {
  const auto loaded = unit_property(unit, "LoadState");
  if (!loaded) return failure(loaded.error());
  if (*loaded != "loaded") {
    return failure(ENOENT, fmt::format("the target has no unit {} (it is {})", unit, *loaded));
  }
  const auto state = unit_property(unit, "ActiveState");
  if (!state) return failure(state.error());
  if (is_down(*state)) return {};
  return failure(EBUSY, fmt::format("{} is {} at the target: stop it there first", unit, *state));
}

Status expect_unit_at_target(const OwnershipRecord& record, const std::string& state_directory) {
  if (record.unit.name.empty()) return {};
  if (Status named = check_name(record); !named) return named;
  const std::string& unit = record.unit.name;
  if (Status free = check_unit_is_free(unit); !free) return free;
  const auto program = own_path();
  if (!program) return failure(program.error());
  // systemd would split a path with blanks, and expand "%" and "$".
  for (const std::string& path : {*program, state_directory}) {
    if (path.find_first_of(" \t\n\"'\\%$;") != std::string::npos) {
      return failure(EINVAL, "run " + unit + " at the target: the path " + path +
                                 " has a character with a meaning for systemd (a blank, a quote, "
                                 "\\, %, $ or ;): choose paths without such characters for "
                                 "ppmr and for --state-dir");
    }
  }
  // By default the lines in the journal have the name of the started program.
  const auto identifier = unit_property(unit, "SyslogIdentifier");
  const bool by_default = identifier && identifier->empty();
  Status started =
      install(record, unit_drop_in_of_target(record, *program, state_directory,
                                             by_default ? plain(record.trees.front().name) : ""));
  if (started) started = systemctl({"start", "--no-block", unit});
  if (!started) (void)remove_drop_in(record);
  return started;
}

Result<UniqueFd> output_of_unit(const OwnershipRecord& record, milliseconds patience) {
  const std::string& unit = record.unit.name;
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto main = unit_property(unit, "MainPID");
    if (!main) return failure(main.error());
    const pid_t pid = std::atoi(main->c_str());
    // Before the unit's main process executes ppmr, its output is that of process 1.
    if (pid > 0 && program_of(pid) == program_of(getpid())) {
      const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      UniqueFd output(
          process ? static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), STDOUT_FILENO, 0))
                  : -1);
      if (output) return output;
      return system_failure("take the output of", unit);
    }
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, fmt::format("{0} did not start at the target within {1} ms: see "
                                            "`systemctl status {0}` there",
                                            unit, patience.count()));
    }
    std::this_thread::sleep_for(kInterval);
  }
}

Status forget_unit_at_target(const OwnershipRecord& record) {
  if (record.unit.name.empty()) return {};
  if (Status named = check_name(record); !named) return named;
  return remove_drop_in(record);
}

Result<std::vector<uint64_t>> journal_sockets_of(const std::vector<ProcessIdentity>& tasks) {
  std::set<uint64_t> found;
  if (tasks.empty()) return std::vector<uint64_t>();
  const auto sockets = read_unix_sockets(tasks.front().pid);
  if (!sockets) return failure(sockets.error());
  for (const ProcessIdentity& task : tasks) {
    const auto descriptors = read_descriptors(task.pid);
    if (!descriptors) continue;  // it has ended
    for (const Descriptor& descriptor : *descriptors) {
      const uint64_t inode = inode_in(descriptor.target, "socket");
      const auto near = sockets->find(inode);
      if (near == sockets->end() || near->second.type != SOCK_STREAM) continue;
      const auto far = sockets->find(near->second.peer);
      if (far != sockets->end() && far->second.path == kJournalSocket) found.insert(inode);
    }
  }
  return std::vector<uint64_t>(found.begin(), found.end());
}

}  // namespace ppmr
