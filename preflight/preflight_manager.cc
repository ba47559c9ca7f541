// Findings about who starts a tree again at the source. When the tree has moved, ppmr kills its
// original, and the parent of the original takes this for a crash. If that parent, or a service
// manager behind it, starts the program again, then two copies run.
//
// A restart that is certain stops the move. A parent that may start the program again is a warning:
// many parents only wait.
#include "preflight/preflight_findings.h"
#include "preflight/shell_text.h"

namespace ppmr {
namespace {

// Replaces control characters, because names come from other processes.
std::string shown(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text;
}

std::string name_of(const Parent& parent) {
  return fmt::format("{} ({})", parent.pid, shown(parent.name));
}

class ManagerCheck {
 public:
  ManagerCheck(const TreeFacts& tree, const std::string& moved_unit, Findings& findings)
      : tree_(tree),
        moved_unit_(moved_unit),
        facts_(*tree.manager),
        root_(shown(tree.name_of(tree.root))),
        findings_(findings) {}

  void run() {
    for (size_t i = 0; i < facts_.parents.size(); ++i) {
      const Parent& parent = facts_.parents[i];
      switch (kind_of(parent)) {
        case ParentKind::kShell:
          if (check_shell(parent, i)) return;
          break;
        case ParentKind::kWrapper:
          break;
        case ParentKind::kManager:
          return check_manager(parent);
        case ParentKind::kUnknown:
          return warn_about(parent);
        case ParentKind::kFirst:
          if (facts_.unit) check_unit(*facts_.unit);
          if (facts_.monit_runs) {
            findings_.warn(
                fmt::format("monit runs here, and may start {} again when it has left", root_),
                "if monit checks it, run `monit unmonitor NAME` first");
          }
          return warn_about_script();
        case ParentKind::kNeutral:
          return warn_about_script();
      }
    }
    warn_about_script();
  }

 private:
  // Returns whether the parents of the shell do not matter.
  bool check_shell(const Parent& shell, size_t index);
  void check_manager(const Parent& manager);
  void check_supervisor(const Parent& supervisord, const std::string& starts);
  void check_unit(const UnitFacts& unit);
  void check_triggers(const UnitFacts& unit, const std::string& systemctl);
  void warn_about(const Parent& parent) {
    findings_.warn(
        fmt::format("{} is the parent of {}, does not move, and may start it again",
                    name_of(parent), root_),
        fmt::format("if it is a service manager, make it stop managing the program first: the move "
                    "ends {} here with SIGKILL",
                    root_));
  }
  void warn_about_script() {
    if (script_ == nullptr) return;
    findings_.warn(fmt::format("the script of {} waits for {}, and goes on here when it has left",
                               name_of(*script_), root_),
                   "the script gets exit code 137, because SIGKILL ends the program here");
  }

  const TreeFacts& tree_;
  const std::string& moved_unit_;
  const ManagerFacts& facts_;
  const std::string root_;
  Findings& findings_;
  const Parent* script_ = nullptr;  // the nearest shell that goes on without a loop
};

bool ManagerCheck::check_shell(const Parent& shell, size_t index) {
  const ShellCall call = parse_shell_call(shell.words);
  if (call.reads_input()) {
    // An idle interactive shell has started the program with &, and does not wait for it.
    if (!shell.waits) return true;
    findings_.warn(fmt::format("the shell {} runs {} in the foreground, and a loop that was typed "
                               "there would start it again",
                               name_of(shell), root_),
                   "end such a loop first");
    return true;
  }
  const auto script = facts_.scripts.find(shell.pid);
  const std::string text = call.has_text                    ? call.text
                           : script == facts_.scripts.end() ? ""
                                                            : script->second;
  std::vector<std::string> names = facts_.root_names;
  for (size_t i = 0; i < index; ++i) {
    const Parent& between = facts_.parents[i];
    for (std::string& name : names_of(between.name, between.program, between.words))
      names.push_back(std::move(name));
    if (kind_of(between) != ParentKind::kShell) continue;
    const ShellCall called = parse_shell_call(between.words);
    if (!called.script.empty()) names.push_back(called.script.substr(called.script.rfind('/') + 1));
  }
  StartsAgain answer = text.empty() ? StartsAgain::kPerhaps : judge_shell_text(text, call, names);
  // With other children, the shell may wait for one of them.
  if (answer == StartsAgain::kSurely && (!shell.waits || shell.children != 1))
    answer = StartsAgain::kPerhaps;
  if (answer == StartsAgain::kNo) {
    if (script_ == nullptr) script_ = &shell;
    return false;
  }
  if (answer == StartsAgain::kSurely) {
    findings_.stop(
        fmt::format("the loop of the shell {} would start {} again here", name_of(shell), root_),
        shell.pid == 1 ? "start the program without the loop"
                       : fmt::format("end the loop but not the program, with `kill -KILL {}`, or "
                                     "move process {} with all its descendants",
                                     shell.pid, shell.pid));
  } else {
    findings_.warn(
        fmt::format("the shell {} waits for {}, and may start it again", name_of(shell), root_),
        "if its script starts the program in a loop, end that loop first");
  }
  return true;
}

void ManagerCheck::check_manager(const Parent& manager) {
  const auto found = facts_.service_directories.find(manager.pid);
  const ServiceDirectory service =
      found == facts_.service_directories.end() ? ServiceDirectory{} : found->second;
  const std::string directory = shown(service.path);
  const std::string starts =
      fmt::format("the service manager {} would start {} again here", name_of(manager), root_);
  const std::string may =
      fmt::format("the service manager {} may start {} again here", name_of(manager), root_);
  std::string remedy;
  if (manager.name == "runsv") remedy = fmt::format("run `sv once {}` first", directory);
  if (manager.name == "supervise") remedy = fmt::format("run `svc -o {}` first", directory);
  if (manager.name == "s6-supervise") remedy = fmt::format("run `s6-svc -O {}` first", directory);
  if (!remedy.empty()) {
    if (!service.starts_again.has_value()) {
      findings_.warn(may, remedy);
    } else if (*service.starts_again) {
      findings_.stop(starts, remedy + ", which leaves it running");
    }
  } else if (manager.name == "supervisord") {
    check_supervisor(manager, starts);
  } else {
    findings_.warn(may,
                   "switch its restarts off for this program first (the restart policy of a "
                   "container)");
  }
}

void ManagerCheck::check_supervisor(const Parent& supervisord, const std::string& starts) {
  const SupervisorProgram& program = facts_.supervisor_program;
  const std::string name = shown(program.name);
  if (program.name.empty()) {
    // As process 1 of a container, supervisord is the parent of all orphans.
    if (supervisord.pid != 1) warn_about(supervisord);
  } else if (program.autorestart == "false") {
    findings_.warn(
        fmt::format(
            "supervisord has started {}, and its configuration has autorestart=false for {}", root_,
            name),
        "make sure that supervisord has read this configuration (supervisorctl update)");
  } else {
    findings_.stop(starts,
                   fmt::format("set autorestart=false for {} in its configuration and run "
                               "`supervisorctl update`, which ends the program and starts it; or "
                               "start it without supervisord, for example with setsid",
                               name));
  }
}

void ManagerCheck::check_triggers(const UnitFacts& unit, const std::string& systemctl) {
  if (unit.triggers.empty()) return;
  findings_.stop(fmt::format("{} belongs to {}, and systemd would start that service again here: "
                             "{} can trigger it",
                             root_, unit.unit.name, list_of(unit.triggers)),
                 fmt::format("run `{} stop {}` first, which leaves the service running", systemctl,
                             fmt::join(unit.triggers, " ")));
}

void ManagerCheck::check_unit(const UnitFacts& unit) {
  const std::string& name = unit.unit.name;
  const bool main_is_moved = tree_.contains(unit.main_pid);
  if (name == moved_unit_ && main_is_moved && !unit.unit.of_user) {
    check_triggers(unit, "systemctl");
    return;
  }
  bool main_waits = false;
  for (size_t i = 0; i < count_passed(facts_.parents); ++i)
    main_waits |= facts_.parents[i].pid == unit.main_pid;
  // Without an answer of systemd the main process is unknown. Otherwise the tree is a part of a
  // service that goes on here.
  const bool unknown = !unit.problem.empty() || unit.main_pid == 0;
  if (!unknown && !main_is_moved && !main_waits) return;
  const std::string systemctl = unit.unit.of_user ? "systemctl --user" : "systemctl";
  const UnitRestart restart = judge_restart(unit, main_is_moved);
  std::string lines = "[Service] and Restart=no";
  if (!unit.forces.empty()) lines = "[Service], Restart=no and RestartForceExitStatus=";
  const std::string remedy = fmt::format(
      "{}run `{} edit --runtime {}` and add the lines {}, or start the program outside of "
      "a service (systemd-run --scope)",
      main_is_moved && !unit.unit.of_user
          ? fmt::format("move the service with `ppmr migrate --unit {}`, or ", name)
          : "",
      systemctl, name, lines);
  if (restart == UnitRestart::kSurely && !unknown) {
    findings_.stop(fmt::format("{} belongs to {}, and systemd would start that service again here "
                               "(Restart={})",
                               root_, name, shown(unit.restart)),
                   remedy);
    check_triggers(unit, systemctl);
    return;
  }
  if (restart != UnitRestart::kNo) {
    findings_.warn(
        fmt::format("{} belongs to {}, and systemd may start that service again here{}", root_,
                    name,
                    unit.problem.empty() ? fmt::format(" (Restart={})", shown(unit.restart))
                                         : ": " + shown(unit.problem)),
        remedy);
    if (!unknown) check_triggers(unit, systemctl);
    return;
  }
  if (unknown) return;
  check_triggers(unit, systemctl);
  const bool enabled = unit.file_state.starts_with("enabled");
  findings_.warn(
      fmt::format("{} belongs to {}, which ends here when it has left{}", root_, name,
                  enabled ? ", and which the next boot starts again" : ""),
      fmt::format("systemd runs what the service has for its end (ExecStopPost=, OnFailure=), and "
                  "does not manage it at the target{}",
                  enabled
                      ? fmt::format("; `{} disable {}` prevents the start at boot", systemctl, name)
                      : ""));
}

}  // namespace

void check_managers(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  // If the move makes a copy, the original runs on, and nothing starts it again.
  if (!tree.manager || options.own_pid_namespace) return;
  ManagerCheck(tree, options.moved_unit, findings).run();
}

}  // namespace ppmr
