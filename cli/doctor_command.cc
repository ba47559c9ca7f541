// `ppmr doctor`: gathers from this node the facts for the checks of cli/doctor, and prints the
// results.
#include "cli/doctor_command.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_text.h"
#include "cli/doctor/credential_checks.h"
#include "cli/doctor/criu_checks.h"
#include "cli/doctor/filter_checks.h"
#include "cli/doctor/kernel_checks.h"
#include "cli/doctor/resource_checks.h"
#include "cli/doctor/service_checks.h"
#include "cli/doctor/target_checks.h"
#include "cli/doctor/trial_checks.h"
#include "cli/option_helpers.h"
#include "cli/screen/counted.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/terminal_style.h"
#include "daemon/control/endpoint_file.h"
#include "daemon/control/mount_daemon.h"
#include "migration/records/record_store.h"
#include "migration/relay/agent_client.h"
#include "mount/mount_table.h"
#include "rdma_stream/connection/security.h"
#include "restart_loader/criu/criu_process.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr uint64_t kPoolBytes = uint64_t{64} << 20;  // the default size that a source locks

// Makes a message printable. Messages quote peers and files, which can contain bytes that control a
// terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
  return text;
}

std::string sentence(const Diagnosis& one, const TerminalStyle& style) {
  const std::string word = to_string(one.level);
  const std::string level = one.level == Level::kOk        ? style.good(word)
                            : one.level == Level::kWarning ? style.doubtful(word)
                                                           : style.bad(word);
  std::string text = fmt::format("{}: {}", level, printable(one.message));
  if (!one.remedy.empty()) text += ". " + printable(one.remedy) + ".";
  return text + "\n";
}

struct Counts {
  std::array<size_t, 3> of_level{};
  size_t at(Level level) const { return of_level.at(static_cast<size_t>(level)); }
};

Counts count(const Diagnoses& all) {
  Counts counts;
  for (const Diagnosis& one : all) ++counts.of_level.at(static_cast<size_t>(one.level));
  return counts;
}

// Returns the text at the end of the output: the problems again, because they may have scrolled
// away, and then the line with the counts.
std::string closing(const Diagnoses& all, const TerminalStyle& style) {
  const Counts counts = count(all);
  std::string text;
  if (counts.at(Level::kProblem) > 0) text += "\n";
  for (const Diagnosis& one : all) {
    if (one.level == Level::kProblem) text += sentence(one, style);
  }
  return text + fmt::format("{}: {} ok, {}, {}\n", counted(all.size(), "check"),
                            counts.at(Level::kOk), counted(counts.at(Level::kWarning), "warning"),
                            counted(counts.at(Level::kProblem), "problem"));
}

json to_json(const Diagnosis& one) {
  return {{"check", one.check},
          {"level", to_string(one.level)},
          {"message", one.message},
          {"remedy", one.remedy}};
}

void add(Diagnoses& all, Diagnoses more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

// Measures the disks of the records and of the spilled images of this node.
std::vector<DiskSpace> measure_disks(const Configuration& configuration) {
  std::vector<DiskSpace> disks;
  const std::vector<std::string> usual = {kDefaultStateDirectory};
  const auto& records = configuration.state_directories;
  for (const std::string& path : records.empty() ? usual : records) {
    disks.push_back(measure_disk("records", path));
    const Status usable = RecordStore::check(path);
    if (!usable) disks.back().why_refused = usable.error().message;
  }
  for (const std::string& path : configuration.spill_directories) {
    disks.push_back(measure_disk("spilled images", path));
  }
  return disks;
}

// Returns the target of a source mount, with its credentials; nothing for other mounts.
std::optional<TargetQuestion> endpoint_of(const MountEntry& mount) {
  const auto endpoint = read_endpoint(mount.source);
  if (!endpoint || !endpoint->contains("target")) return std::nullopt;
  const AgentEndpoint parsed = parse_endpoint(*endpoint);
  return TargetQuestion{.address = parsed.address, .credentials = parsed.credentials};
}

// Returns the target that the operator has named. Without one, returns the targets of `mounts` and
// the targets in the configuration files, because the daemons of these files may not run.
std::vector<TargetQuestion> targets_to_ask(const TargetQuestion& named,
                                           const std::vector<MountEntry>& mounts,
                                           const std::vector<Configuration::Target>& configured) {
  if (!named.address.empty()) return {named};
  std::vector<TargetQuestion> questions;
  const auto add = [&](TargetQuestion question) {
    const bool is_new =
        !question.address.empty() &&
        std::none_of(questions.begin(), questions.end(), [&](const TargetQuestion& known) {
          return known.address == question.address;
        });
    if (is_new) questions.push_back(std::move(question));
  };
  for (const MountEntry& mount : mounts) add(endpoint_of(mount).value_or(TargetQuestion{}));
  for (const auto& one : configured) {
    add({.address = one.address, .credentials = one.credentials});
  }
  return questions;
}

// Dumps and restores a program of root and a program of an ordinary user. Does nothing if this user
// is not root, because only root may dump other processes; check_criu() reports that.
Diagnoses try_moves(const NodeFacts& node) {
  Diagnoses found;
  if (node.criu_path.empty() || node.user != 0) return found;
  // A program of root needs no CAP_SYS_RESOURCE. If it does not move either, a missing
  // CAP_SYS_RESOURCE is not the cause.
  bool may_set_resources = node.has_capability(kCapSysResource);
  for (const uid_t user : {uid_t{0}, kNobody}) {
    found.push_back(judge_trial(user, try_criu(node.criu_path, user), may_set_resources));
    if (found.back().level != Level::kOk) may_set_resources = true;
  }
  return found;
}

}  // namespace

int DoctorCommand::run() const {
  ignore_sigpipe();
  auto mounts = read_ppmr_mounts();
  if (!mounts) return report("doctor", {ExitCode::kFailure, mounts.error().message}, json);
  TargetQuestion question{.address = target, .credentials = credentials};
  if (!mountpoint.empty()) {
    const auto found = find_mount(mountpoint, *mounts);
    if (!found) {
      return report("doctor", no_mount(mountpoint, found.error()), json);
    }
    *mounts = {found->mount};
  }
  // Prints each group as soon as it is complete: CRIU and a silent target take seconds.
  Diagnoses all;
  const TerminalStyle style = TerminalStyle::of(STDOUT_FILENO);
  const auto show = [&](Diagnoses more) {
    // The configuration file of a daemon may name the same key as the command line.
    std::erase_if(more, [&](const Diagnosis& one) {
      return std::find(all.begin(), all.end(), one) != all.end();
    });
    for (const Diagnosis& one : more) {
      if (json) {
        print_whole(stdout, "{}\n", json_text(to_json(one)));
      } else {
        print_to(stdout, "{}", sentence(one, style));
      }
    }
    add(all, std::move(more));
  };
  show(check_kernel(gather_kernel_facts()));
  const auto criu = find_criu();
  CriuAnswers criu_answers(criu.value_or(""));
  const NodeFacts node = gather_node_facts(criu_answers);
  show(check_criu(node, criu ? "" : criu.error().message));
  show(try_moves(node));
  const Configuration configuration = read_configuration(directory);
  ResourceFacts resources = gather_resource_facts();
  resources.disks = measure_disks(configuration);
  resources.ports = find_rdma_ports();
  show(check_resources(resources, kPoolBytes));
  show(check_left_locks(read_locks().value_or(std::vector<LockedConnection>())));
  std::vector<Credentials> known = configuration.credentials;
  known.push_back(question.credentials);
  for (const Credentials& one : known) show(check_credentials(one, ::time(nullptr)));
  show(check_configuration(configuration, directory, "/proc/self/exe"));
  show(check_units(configuration.files));
  show(check_mounts(*mounts));
  const auto configured =
      mountpoint.empty() ? configuration.targets : std::vector<Configuration::Target>{};
  for (const TargetQuestion& one : targets_to_ask(question, *mounts, configured)) {
    show(check_target(one, node));
  }
  const Counts counts = count(all);
  const bool good = counts.at(Level::kProblem) == 0;
  if (json) {
    print_whole(stdout, "{}\n",
                json_text({{"check", "summary"},
                           {"ok", good},
                           {"exit_code", to_int(good ? ExitCode::kSuccess : ExitCode::kFailure)},
                           {"checks", all.size()},
                           {"oks", counts.at(Level::kOk)},
                           {"warnings", counts.at(Level::kWarning)},
                           {"problems", counts.at(Level::kProblem)}}));
  } else {
    print_to(stdout, "{}", closing(all, style));
  }
  return to_int(good ? ExitCode::kSuccess : ExitCode::kFailure);
}

}  // namespace ppmr
