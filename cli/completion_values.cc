#include "cli/completion_values.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/exit_code.h"
#include "base/whole_file.h"
#include "daemon/command_line/output.h"
#include "migration/records/record_store.h"
#include "mount/mount_table.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr size_t kOfferedMax = 500;
constexpr const char* kControlGroups = "/sys/fs/cgroup";
constexpr const char* kContainers = "/run/runc";
constexpr const char* kMountsOfMoves = "/run/ppmr/to";

struct Kind {
  const char* command;  // empty: any
  const char* option;   // empty: the argument of the command
  const char* values;
};

constexpr std::array<Kind, 18> kKinds = {{{"", "--pid", "pids"},
                                          {"", "--mount", "mounts"},
                                          {"status", "", "mounts"},
                                          {"doctor", "", "mounts"},
                                          {"drain", "", "mounts"},
                                          {"", "--to", "nodes"},
                                          {"", "--runc", "containers"},
                                          {"", "--unit", "units"},
                                          {"", "--cgroup", "groups"},
                                          {"", "--user", "users"},
                                          {"migrate", "--set", "open-migrations"},
                                          {"migrate", "--pause", "open-migrations"},
                                          {"migrate", "--resume", "open-migrations"},
                                          {"migrate", "--cancel", "open-migrations"},
                                          {"migrate", "--recover", "open-migrations"},
                                          {"migrate", "--resolve", "open-migrations"},
                                          {"timeline", "", "migrations"},
                                          {"takeover", "", "epochs"}}};

// Returns the names of the directories in `directory`; none if it cannot be read.
std::vector<std::string> names_in(const char* directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : list_directory(directory).value_or(DirectoryEntries())) {
    if (entry.is_directory(error)) names.push_back(entry.path().filename());
  }
  return names;
}

std::vector<std::string> pids() {
  std::vector<std::string> found;
  for (const ProcessStat& each : read_all_processes().value_or(std::vector<ProcessStat>{})) {
    if (!each.kernel_thread && each.pid != 1) found.push_back(std::to_string(each.pid));
  }
  return found;
}

std::vector<std::string> mounts() {
  std::vector<std::string> found;
  for (const MountEntry& each : read_ppmr_mounts().value_or(std::vector<MountEntry>{})) {
    found.push_back(each.mountpoint);
  }
  return found;
}

std::vector<std::string> users() {
  std::vector<std::string> found;
  ::setpwent();
  // getpwent() is not safe with several threads, but this program has one.
  while (const passwd* each = ::getpwent()) found.emplace_back(each->pw_name);  // NOLINT
  ::endpwent();
  return found;
}

// Returns the control groups of this node, as paths below the root of their hierarchy.
std::vector<std::string> groups() {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator all(kControlGroups, error);
  for (; !error && all != fs::recursive_directory_iterator() && found.size() < kOfferedMax;
       all.increment(error)) {
    if (all->is_directory(error)) found.push_back(fs::relative(all->path(), kControlGroups, error));
  }
  return found;
}

std::vector<std::string> units() {
  std::vector<std::string> found;
  for (const std::string& group : groups()) {
    if (group.ends_with(".service")) found.push_back(fs::path(group).filename());
  }
  return found;
}

std::vector<std::string> migrations(bool only_open) {
  std::vector<std::string> found;
  if (access(kDefaultStateDirectory, R_OK) != 0) return found;  // open() would create it
  const auto store = RecordStore::open(kDefaultStateDirectory);
  if (!store) return found;
  std::vector<Error> unreadable;
  const auto records = store->list_for_display(0, &unreadable);
  for (const auto& each : records.value_or(std::vector<OwnershipRecord>{})) {
    constexpr size_t kDigits = 8;  // what `ppmr migrations` shows
    if (!only_open || !each.is_settled()) found.push_back(each.id.substr(0, kDigits));
  }
  return found;
}

std::vector<std::string> values_of(const std::string& kind) {
  if (kind == "pids") return pids();
  if (kind == "mounts") return mounts();
  if (kind == "nodes") return names_in(kMountsOfMoves);
  if (kind == "containers") return names_in(kContainers);
  if (kind == "units") return units();
  if (kind == "groups") return groups();
  if (kind == "users") return users();
  if (kind == "open-migrations") return migrations(/*only_open=*/true);
  if (kind == "migrations") return migrations(/*only_open=*/false);
  if (kind == "epochs") return names_in(kEpochsDirectory);
  return {};
}

}  // namespace

std::string kind_of_values(const std::string& command, const std::string& option) {
  for (const Kind& each : kKinds) {
    const bool is_command = each.command == command || (*each.command == '\0' && !option.empty());
    if (is_command && each.option == option) return each.values;
  }
  return "";
}

std::vector<std::string> offered(std::vector<std::string> values) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,=-";
  std::erase_if(values, [](const std::string& value) {
    return value.empty() || value.front() == '-' ||
           value.find_first_not_of(kPlain) != std::string::npos;
  });
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  if (values.size() > kOfferedMax) values.resize(kOfferedMax);
  return values;
}

int CompletionValuesCommand::run() const {
  ignore_sigpipe();
  for (const std::string& value : offered(values_of(kind))) print_whole(stdout, "{}\n", value);
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
