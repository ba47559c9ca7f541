// Runs the checks of a move once, then protects the process until it ends. A service runs this
// command, so it prints one line for each event, and draws no progress.
#include "cli/protect_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/descriptor_limit.h"
#include "base/json_text.h"
#include "base/number_file.h"
#include "base/unique_fd.h"
#include "base/without_exceptions.h"
#include "cli/interruption.h"
#include "cli/migrate_command.h"
#include "cli/move_ends.h"
#include "cli/option_helpers.h"
#include "cli/pace_options.h"
#include "cli/pid_check.h"
#include "cli/status_view.h"
#include "daemon/command_line/config_file.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/control/target_mount.h"
#include "migration/protect/protection.h"
#include "migration/source/moved_unit.h"
#include "migration/source/protection_claim.h"
#include "preflight/container_facts.h"
#include "processes/proc_files.h"
#include "restart_loader/criu/passed_options.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kAuto = "auto";
constexpr milliseconds kPauseDefault{150};
constexpr milliseconds kSignalInterval{200};
constexpr milliseconds kWaitInterval{1000};

// A takeover cannot restore connections, because their peers have gone on since the epoch.
constexpr const char* kCloseConnections = "--tcp-close";

std::string line_of(const json& event) {
  const std::string what = event.at("event");
  if (what == "epoch") {
    const auto pause_ms = event.at("pause_ms").get<int64_t>();
    const auto max_pause_ms = event.at("max_pause_ms").get<int64_t>();
    const std::string longer = pause_ms > max_pause_ms
                                   ? fmt::format(" (longer than --max-pause, {} ms)", max_pause_ms)
                                   : "";
    return fmt::format(
        "epoch {}: {} of memory, {} sent, pause {} ms{}, took {}, the next after {}{}",
        event.at("number").get<uint64_t>(), format_size(event.at("bytes").get<uint64_t>()),
        format_size(event.at("sent_bytes").get<uint64_t>()), pause_ms, longer,
        format_time(milliseconds(event.at("took_ms").get<int64_t>())),
        format_time(milliseconds(event.at("every_ms").get<int64_t>())), on_disk_text(event));
  }
  if (what == "kept") {
    return fmt::format("{} has the newest epoch again: {}, {} sent",
                       event.at("partner").get<std::string>(), event.at("number").get<uint64_t>(),
                       format_size(event.at("sent_bytes").get<uint64_t>()));
  }
  if (what == "warning") return "warning: " + event.at("sentence").get<std::string>();
  return event.value("reason", what);
}

// Returns whether the text output has a line for the event. It has no line for each epoch that a
// partner keeps, because every partner keeps every epoch unless a warning says otherwise.
bool has_line(const json& event) {
  return event.at("event") != "kept" || event.at("is_back").get<bool>();
}

// Returns whether the checks failed only because the target or its mount is away, so that they may
// succeed later.
bool may_come_back(ExitCode code) {
  return code == ExitCode::kPeerFailed || code == ExitCode::kDaemonSilent ||
         code == ExitCode::kNotMounted;
}

// One partner, as the command line names it: one of the members is empty.
struct PartnerOption {
  std::string mountpoint;
  std::string target_host;
};

class Protect {
 public:
  explicit Protect(const ProtectCommand& command) : command_(command) {}
  int run();

 private:
  CommandResult<void> check_options() const;
  CommandResult<void> await_tree(Interruption& interruption);
  CommandResult<void> identify_tree();
  CommandResult<pid_t> find_root();
  std::string what() const;  // the name of the protected process, unit or container, for messages
  std::vector<PartnerOption> partners() const;
  CommandResult<void> check(const PartnerOption& partner) const;
  CommandResult<void> check_partners();
  CommandResult<UniqueFd> lock_name() const;
  Result<PartnerMount> find_partner(const PartnerOption& partner) const;
  std::string name_of(const PartnerOption& partner) const;
  void show(const json& event) const;

  const ProtectCommand& command_;
  ProtectionSettings settings_;
};

CommandResult<void> Protect::check_options() const {
  if (command_.every < kEpochIntervalMin || command_.every > kEpochIntervalMax) {
    return command_failure(ExitCode::kUsage, "--every must be at least 1 s and at most 24 h");
  }
  if (command_.limits.max_downtime <= milliseconds(0)) {
    return command_failure(ExitCode::kUsage, "--max-pause must be more than 0");
  }
  if (!command_.name.empty()) {
    if (Status valid = check_protected_name(command_.name); !valid) {
      return command_failure(ExitCode::kUsage, "--name: " + valid.error().message);
    }
  }
  for (const auto* given : {&command_.mountpoints, &command_.target_hosts}) {
    std::set<std::string> once(given->begin(), given->end());
    if (once.size() == given->size()) continue;
    return command_failure(ExitCode::kUsage,
                           "--to or --mount has a value twice: name each target once");
  }
  if (auto passed = check_passed_options(command_.criu_options); !passed) {
    return command_failure(ExitCode::kUsage, passed.error().message);
  }
  return {};
}

// Waits until the unit, container or process runs. Looks for it at intervals, because only its
// manager could report its start.
CommandResult<void> Protect::await_tree(Interruption& interruption) {
  std::string told;
  for (;;) {
    auto found = identify_tree();
    if (found) return found;
    if (std::exchange(told, found.error().message) != found.error().message) {
      print_to(stderr, "waiting: {}\n", found.error().message);
    }
    interruption.poll_signals(kWaitInterval);
    if (interruption.flag()) {
      return command_failure(ExitCode::kInterrupted, "interrupted: nothing was protected");
    }
  }
}

CommandResult<void> Protect::identify_tree() {
  auto root = find_root();
  if (!root) return tl::unexpected(root.error());
  const auto process = identify(*root);
  const auto stat = read_process_stat(*root);
  if (!process || !stat) {
    const std::string option = command_.pid_file.empty() ? fmt::format("--pid {}", *root)
                                                         : "--pid-file " + command_.pid_file;
    return command_failure(
        ExitCode::kUsage, fmt::format("{}: there is no such process (`ps -e` lists them)", option));
  }
  settings_.tree = {read_node_id(), read_boot_id(), process->pid, process->start_time, stat->name};
  settings_.name = command_.name;
  if (!settings_.name.empty()) return {};
  const TreeManager& manager = settings_.manager;
  settings_.name = !manager.unit.name.empty()        ? manager.unit.name
                   : !manager.container.name.empty() ? manager.container.name
                                                     : fmt::format("{}-{}", stat->name, *root);
  std::replace_if(
      settings_.name.begin(), settings_.name.end(),
      [](char c) { return !is_protection_name(std::string("x") + c); }, '_');
  if (settings_.name[0] == '.') settings_.name[0] = '_';
  if (Status valid = check_protected_name(settings_.name); !valid) {
    return command_failure(ExitCode::kUsage,
                           valid.error().message + "; give another one with --name");
  }
  return {};
}

CommandResult<pid_t> Protect::find_root() {
  if (!command_.unit.empty()) {
    auto unit = find_moved_unit(command_.unit);
    if (!unit) return command_failure(ExitCode::kUsage, "--unit " + unit.error().message);
    settings_.manager.unit = std::move(unit->record);
    return unit->main_pid;
  }
  if (!command_.pid_file.empty()) return static_cast<pid_t>(read_number(command_.pid_file));
  if (command_.container.empty()) return command_.pid;
  const auto facts = gather_container_facts(command_.container);
  if (!facts) return command_failure(ExitCode::kUsage, "--runc: " + facts.error().message);
  const ContainerState& state = facts->state;
  if (state.pid <= 0) {
    return command_failure(
        ExitCode::kUsage,
        fmt::format("--runc: the container {} is {}, and has no process to protect", state.name,
                    state.status));
  }
  settings_.manager.container = {state.name, state.bundle, state.created};
  return state.pid;
}

std::string Protect::what() const {
  const TreeManager& manager = settings_.manager;
  if (!manager.unit.name.empty()) return "unit " + manager.unit.name;
  if (!manager.container.name.empty()) return "container " + manager.container.name;
  return fmt::format("process {} ({})", settings_.tree.root, settings_.tree.program);
}

// Runs the checks of a move to the partner. What stops a move would stop a takeover, too, and at
// that time the source is lost.
CommandResult<void> Protect::check(const PartnerOption& partner) const {
  MigrateCommand move;
  move.name = "protect";
  if (!command_.unit.empty()) {
    move.unit = settings_.manager.unit.name;
  } else if (!command_.container.empty()) {
    move.containers = {command_.container};
  } else {
    move.pids = {settings_.tree.root};
  }
  move.mountpoint = partner.mountpoint;
  move.target_host = partner.target_host;
  move.key_file = command_.key_file;
  move.state_directory = command_.state_directory;
  move.criu_options = settings_.criu_options;
  move.dry_run = true;
  move.quiet = true;
  const int code = move.run();
  if (code == to_int(ExitCode::kSuccess)) return {};
  return command_failure(static_cast<ExitCode>(code),
                         fmt::format("{} is not protected, for the reason above", what()));
}

std::vector<PartnerOption> Protect::partners() const {
  std::vector<PartnerOption> all;
  for (const std::string& mountpoint : command_.mountpoints) all.push_back({mountpoint, ""});
  for (const std::string& host : command_.target_hosts) all.push_back({"", host});
  return all;
}

// Returns the host of --to, or the address of the target behind the mount of --mount.
std::string Protect::name_of(const PartnerOption& partner) const {
  if (!partner.target_host.empty()) return partner.target_host;
  const auto found = find_partner(partner);
  return found ? parse_endpoint(found->endpoint).address : partner.mountpoint;
}

// Checks each partner. With several partners, a partner that is away does not stop the protection:
// ppmr checks it as soon as it is back. At least one partner must pass the checks.
CommandResult<void> Protect::check_partners() {
  const auto all = partners();
  size_t ready = 0;
  CommandResult<void> first_failure;
  for (const PartnerOption& partner : all) {
    const auto checked = check(partner);
    if (checked) ++ready;
    const bool stops = !checked && (all.size() == 1 || !may_come_back(checked.error().exit_code));
    if (stops) return checked;
    if (!checked && first_failure) first_failure = checked;
    FanOutTarget target{.name = name_of(partner),
                        .find = [this, partner] { return find_partner(partner); },
                        .check = {}};
    if (!checked) {
      target.check = [this, partner]() -> Status {
        const auto later = check(partner);
        return later ? Status{} : failure(EPERM, later.error().message);
      };
    }
    settings_.targets.push_back(std::move(target));
  }
  return ready > 0 ? CommandResult<void>{} : first_failure;
}

// Locks the name of the protection. Two protections of one name would remove each other's
// checkpoints.
CommandResult<UniqueFd> Protect::lock_name() const {
  auto lock = lock_protection(settings_.name);
  if (lock) return std::move(*lock);
  const bool is_taken = lock.error().errno_value == EBUSY;
  return command_failure(is_taken ? ExitCode::kUsage : ExitCode::kFailure, lock.error().message);
}

Result<PartnerMount> Protect::find_partner(const PartnerOption& partner) const {
  auto ends = find_move_ends(
      {partner.mountpoint, partner.target_host, command_.key_file, command_.state_directory});
  if (!ends) return failure(EIO, ends.error().message);
  return PartnerMount{std::move(ends->mount), std::move(ends->endpoint)};
}

void Protect::show(const json& event) const {
  if (command_.json) {
    print_whole(stdout, "{}\n", json_text(event));
  } else if (has_line(event) && (!command_.quiet || event.at("event") != "epoch")) {
    print_to(event.at("event") == "epoch" ? stdout : stderr, "{}\n", line_of(event));
  }
  std::fflush(stdout);
}

int Protect::run() {
  ignore_sigpipe();
  raise_descriptor_limit();  // to end a copy takes a descriptor for each task
  const auto fail = [&](const CommandError& error) {
    return report("protect", error, command_.json);
  };
  if (auto checked = check_options(); !checked) return fail(checked.error());
  if (command_.only_checks) return to_int(ExitCode::kSuccess);
  std::optional<Interruption> interruption;
  if (command_.waits) interruption.emplace();
  auto found = interruption ? await_tree(*interruption) : identify_tree();
  if (!found) return fail(found.error());
  settings_.criu_options = command_.criu_options;
  auto& options = settings_.criu_options;
  if (std::find(options.begin(), options.end(), kCloseConnections) == options.end()) {
    options.push_back(kCloseConnections);
  }
  auto criu = find_criu();
  if (!criu) return fail({ExitCode::kFailure, criu.error().message});
  settings_.criu = *criu;
  const auto lock = lock_name();
  if (!lock) return fail(lock.error());
  if (auto possible = check_partners(); !possible) return fail(possible.error());
  // The claim must follow the checks above: they are the checks of a move, and a claim stops a
  // move.
  const ProtectionClaim claim{
      settings_.name, {settings_.tree.root, settings_.tree.root_start_time}, getpid()};
  if (Status claimed = claim_protection(*lock, claim); !claimed) {
    return fail({ExitCode::kFailure, claimed.error().message});
  }
  settings_.every = command_.every;
  settings_.mtbf = command_.mtbf;
  settings_.limits = command_.limits;
  settings_.keep = command_.keep;
  settings_.limits.max_time = command_.every;
  settings_.policy = command_.policy;
  settings_.on_event = [this](const json& event) { show(event); };

  // Created only here, so that a signal during the checks ends the program at once.
  if (!interruption) interruption.emplace();
  std::atomic<bool> ended = false;
  std::optional<Result<ProtectionEnd>> end;
  std::thread thread([&] {
    end = without_exceptions([&]() -> Result<ProtectionEnd> {
      return Protection(settings_, interruption->flag()).run();
    });
    ended = true;
  });
  if (!command_.json && !command_.quiet) {
    const std::string every = command_.mtbf ? "as often as its pauses and the MTBF suggest"
                                            : "every " + format_time(command_.every);
    print_to(stdout, "protecting {} as {}, {}\n", what(), settings_.name, every);
    std::fflush(stdout);
  }
  while (!ended) interruption->poll_signals(kSignalInterval);
  thread.join();
  if (!*end) return fail({ExitCode::kFailure, end->error().message});
  const ProtectionEnd& how = **end;
  if (how.exit_code != ExitCode::kSuccess) return fail({how.exit_code, how.message});
  show({{"event", "ended"}, {"reason", how.message}});
  return to_int(ExitCode::kSuccess);
}

// Adds the options that name the target of a move. Here they may be repeated, and each names one
// partner.
TargetOptions add_partner_options(CLI::App& sub, ProtectCommand& command) {
  auto* mount = sub.add_option("--mount", command.mountpoints,
                               "source mount, whose target keeps the epochs; may be repeated")
                    ->type_name("MOUNTPOINT");
  auto* to = sub.add_option("--to", command.target_hosts,
                            "node that keeps the epochs, where ppmr target listens; a source mount "
                            "is made if there is none; may be repeated")
                 ->type_name("HOST[:PORT]")
                 ->excludes(mount)
                 ->check(target_host_check());
  for (CLI::Option* option : {mount, to}) option->allow_extra_args(false)->take_all();
  add_target_key_option(sub, command.key_file, to);
  return {mount, to};
}

}  // namespace

int ProtectCommand::run() const { return Protect(*this).run(); }

void add_protect_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "protect",
      "Keep a copy of a running process, seconds old, in the memory of another node, its partner");
  auto command = make_command<ProtectCommand>(sub, exit_code);
  command->limits.max_downtime = kPauseDefault;
  add_config_option(sub);
  auto* pid =
      sub.add_option("--pid", command->pid, "process to protect with all of its descendants")
          ->check(pid_check())
          ->type_name("PID");
  auto* pid_file =
      sub.add_option("--pid-file", command->pid_file, "file with the pid of the process to protect")
          ->type_name("FILE")
          ->excludes(pid);
  auto* container = sub.add_option("--runc", command->container, "container of runc to protect")
                        ->type_name("NAME")
                        ->excludes(pid)
                        ->excludes(pid_file);
  auto* unit = sub.add_option("--unit", command->unit,
                              "service of systemd to protect; the partner's systemd supervises its "
                              "copy under the same name")
                   ->type_name("UNIT")
                   ->excludes(pid)
                   ->excludes(pid_file)
                   ->excludes(container);
  const TargetOptions target = add_partner_options(sub, *command);
  sub.add_option_function<std::string>(
         "--policy",
         [command](const std::string& text) {
           const auto policy = parse_seal_policy(text);
           if (!policy) throw CLI::ValidationError("--policy", policy.error().message);
           command->policy = *policy;
         },
         "with several targets: how many of them must have an epoch so that it counts in status "
         "and metrics; default: all")
      ->type_name("all|quorum|any");
  sub.add_option("--name", command->name,
                 "name at the partner; default: that of the unit or container, or program and pid")
      ->type_name("NAME");
  auto* mtbf = sub.add_option_function<std::string>(
                      "--mtbf",
                      [command](const std::string& text) {
                        const auto time = parse_time(text);
                        if (!time) throw CLI::ValidationError("--mtbf", time.error().message);
                        command->mtbf = *time;
                      },
                      "with --every auto: how long this node runs until it fails, on average")
                   ->type_name("TIME");
  auto* every =
      sub.add_option_function<std::string>(
             "--every",
             [command](const std::string& text) {
               if (text == kAuto) return;
               const auto time = parse_time(text);
               if (!time) throw CLI::ValidationError("--every", time.error().message);
               command->every = *time;
             },
             "how often a new epoch begins: what the process has done since the last one is lost "
             "with its node; auto: as often as costs the least time with --mtbf")
          ->type_name("TIME|auto")
          ->default_str("30s");
  sub.add_option("--keep", command->keep,
                 "how many epochs the partner keeps; older ones cost what has changed since")
      ->check(CLI::Range(1u, kKeptEpochsMax))
      ->type_name("NUMBER")
      ->capture_default_str();
  add_time_option(sub, "--max-pause", command->limits.max_downtime,
                  "how long the process may stand still for an epoch");
  add_pace_options(sub, command->limits);
  sub.add_option("--state-dir", command->state_directory, "directory for the records of migrations")
      ->capture_default_str();
  sub.add_flag("--wait", command->waits, "if it does not run, wait until it does; for a service")
      ->excludes(pid);
  sub.add_flag("--check", command->only_checks, "check the options, and protect nothing");
  auto* json_flag =
      sub.add_flag("--json", command->json, "print events as JSON, one object per line");
  sub.add_flag("--quiet", command->quiet, "print only warnings and errors")->excludes(json_flag);
  sub.add_option("CRIU-OPTIONS", command->criu_options,
                 "after --: options for CRIU on both nodes; allowed are " + passed_options_text())
      ->take_all();
  sub.parse_complete_callback([&sub, pid, pid_file, container, unit, target, every, mtbf] {
    if (has_unknown_option(sub)) return;
    const bool is_auto = every->count() > 0 && every->as<std::string>() == kAuto;
    if (is_auto && mtbf->count() == 0) throw CLI::RequiredError("--mtbf TIME with --every auto");
    if (!is_auto && mtbf->count() > 0) throw CLI::RequiredError("--every auto with --mtbf");
    if (pid->count() + pid_file->count() + container->count() + unit->count() == 0) {
      throw CLI::RequiredError("--pid PID, --pid-file FILE, --runc NAME or --unit UNIT");
    }
    if (!target.is_given()) throw CLI::RequiredError("--to HOST or --mount MOUNTPOINT");
  });
}

}  // namespace ppmr
