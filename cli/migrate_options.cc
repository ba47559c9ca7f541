// `ppmr migrate` and `ppmr evacuate`: their options and help texts.
#include "cli/migrate_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <set>

#include "cli/cancel_command.h"
#include "cli/evacuate_command.h"
#include "cli/migrate_command.h"
#include "cli/option_helpers.h"
#include "cli/pace_options.h"
#include "cli/pause_command.h"
#include "cli/pid_check.h"
#include "cli/recover_command.h"
#include "cli/resolve_command.h"
#include "cli/set_command.h"
#include "preflight/preflight.h"
#include "restart_loader/criu/passed_options.h"

namespace ppmr {
namespace {

// Starts a migration, or does something about one that has begun.
struct MigrateOrRecover {
  MigrateCommand migrate;
  bool recover = false;
  std::string recover_id;
  ResolveCommand resolve;
  CancelCommand cancel;
  SetCommand set;
  PauseCommand pause;
  std::optional<std::chrono::milliseconds> timeout;
  bool json = false;

  int run() {
    if (!set.digits.empty()) {
      set.limits = migrate.criu_options;
      set.state_directory = migrate.state_directory;
      set.json = json;
      return set.run();
    }
    if (!pause.digits.empty()) {
      pause.state_directory = migrate.state_directory;
      pause.json = json;
      return pause.run();
    }
    if (!cancel.digits.empty()) {
      cancel.state_directory = migrate.state_directory;
      cancel.json = json;
      return cancel.run();
    }
    if (!resolve.digits.empty()) {
      resolve.state_directory = migrate.state_directory;
      resolve.json = json;
      return resolve.run();
    }
    if (recover) {
      return RecoverCommand{recover_id, migrate.state_directory, timeout, json}.run();
    }
    migrate.timeout = timeout;
    migrate.json = json;
    return migrate.run();
  }
};

// Adds the common options of migrate and evacuate.
template <typename Command>
void add_move_options(CLI::App& sub, std::shared_ptr<Command> command, MigrateCommand& migrate) {
  auto* eager =
      sub.add_flag("--eager", migrate.move.eager,
                   "run the program at the target only after all of its memory is in place");
  sub.add_flag(
      "--post-copy", migrate.move.post_copy,
      "run the program at the target before its memory is there; until all of it has arrived, the "
      "loss of a node or of the link loses the program");
  auto* stop_and_copy =
      sub.add_flag("--stop-and-copy", migrate.move.stop_and_copy,
                   "send all memory while the program is frozen, none while it runs");
  add_time_option(sub, "--max-downtime", migrate.limits.max_downtime,
                  "how long the program may stand still: its memory is copied in rounds while it "
                  "runs, until the rest is expected to fit")
      ->excludes(stop_and_copy)
      ->excludes(eager);
  add_time_option(sub, "--max-time", migrate.limits.max_time, "time limit for these rounds")
      ->excludes(stop_and_copy)
      ->excludes(eager);
  const PaceOptions pace = add_pace_options(sub, migrate.limits);
  auto* slow_down = add_slow_down_option(sub, migrate.limits);
  for (CLI::Option* option : {pace.max_rate, pace.cpu_share, slow_down}) {
    option->excludes(stop_and_copy)->excludes(eager);
  }
  sub.add_option_function<std::string>(
         "--on-timeout",
         [&limits = migrate.limits](const std::string& text) {
           const auto parsed = parse_on_timeout(text);
           if (!parsed) throw CLI::ValidationError("--on-timeout", parsed.error().message);
           limits.on_timeout = *parsed;
         },
         "what happens if the rest does not fit by then: freeze (the program stands still for "
         "longer), cancel (it stays) or post-copy (the move begins again with --post-copy)")
      ->type_name("freeze|cancel|post-copy")
      ->default_str("freeze")
      ->excludes(stop_and_copy)
      ->excludes(eager);
  sub.add_option("--allow-loss", migrate.allowed_losses,
                 fmt::format("what the processes may lose, because CRIU does not restore it: {}; "
                             "may be repeated",
                             fmt::join(kAcceptableLosses, ", ")))
      ->check(CLI::IsMember(
                  std::vector<std::string>(kAcceptableLosses.begin(), kAcceptableLosses.end()))
                  .description(""))
      ->type_name("KIND")
      ->allow_extra_args(false)
      ->take_all();
  auto* dry_run = sub.add_flag("--dry-run", migrate.dry_run, "run only the checks on both nodes");
  sub.add_flag(
         "--rehearse", migrate.move.rehearse,
         "try the move: dump, send and restore the program, which then goes on here; what was "
         "restored never runs, and is discarded")
      ->excludes(dry_run);
  sub.add_option("--jobs", migrate.jobs,
                 "maximum number of processes that are dumped at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_time_option(sub, "--release-timeout", migrate.release_timeout,
                  "time limit for processes that use RDMA themselves to release it");
  auto* hook = sub.add_option("--hook", migrate.hooks.directory,
                              "directory of programs to run here: before-freeze, after-run, "
                              "after-abort")
                   ->type_name("DIR");
  add_time_option(sub, "--hook-timeout", migrate.hooks.timeout, "time limit for each of them")
      ->needs(hook);
  sub.add_option("--state-dir", migrate.state_directory, "directory for the records of migrations")
      ->capture_default_str();
  sub.add_option("CRIU-OPTIONS", migrate.criu_options,
                 "after --: options for CRIU on both nodes; allowed are " + passed_options_text())
      ->take_all();
}

template <typename Command>
void add_output_options(CLI::App& sub, std::shared_ptr<Command> command, MigrateCommand& migrate) {
  auto* json = sub.add_flag("--json", command->json,
                            "print events and the summary as JSON, one object per line");
  sub.add_flag("--quiet", migrate.quiet, "print only errors")->excludes(json);
}

struct EvacuateOptions {
  EvacuateCommand evacuate;
  std::optional<std::chrono::milliseconds> timeout;
  bool json = false;

  int run() {
    evacuate.migrate.timeout = timeout;
    evacuate.migrate.json = json;
    return evacuate.run();
  }
};

// Refuses all given options except `action` and `allowed`. `action` starts no migration, so an
// option for a new migration is a mistake of the user.
void refuse_other_options(const CLI::App& migrate, const std::string& action,
                          const std::set<std::string>& allowed) {
  for (const CLI::Option* option : migrate.get_options()) {
    const std::string& name = option->get_single_name();
    if (option->count() > 0 && name != action && !allowed.contains(name)) {
      throw CLI::ExcludesError("--" + action, option->get_name());
    }
  }
}

void add_resolve(CLI::App& sub, ResolveCommand& resolve) {
  auto* id = sub.add_option("--resolve", resolve.digits,
                            "decide an open migration whose other node is lost for good")
                 ->type_name("ID");
  auto* run_here =
      sub.add_flag("--run-here", resolve.run_here, "with --resolve: let the copy run on this node")
          ->needs(id);
  sub.add_flag_function(
         "--discard", [](int64_t) {},
         "with --resolve: give up the copy on this node, and record what is lost")
      ->needs(id)
      ->excludes(run_here);
  sub.add_option("--fence", resolve.fence,
                 "with --resolve: a command that ends with 0 if the other node is certainly dead")
      ->type_name("COMMAND")
      ->needs(id);
}

}  // namespace

void add_evacuate_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "evacuate", "Move all processes that match to another node, each one independently");
  auto command = make_command<EvacuateOptions>(sub, exit_code);
  EvacuateCommand& evacuate = command->evacuate;
  const TargetOptions target = add_target_options(
      sub, evacuate.migrate.mountpoint, evacuate.migrate.target_host, evacuate.migrate.key_file);
  auto* cgroup = sub.add_option("--cgroup", evacuate.selector.cgroup,
                                "select processes of this control group and of its descendants");
  auto* user = sub.add_option("--user", evacuate.selector.user,
                              "select processes of this user (name or number)");
  auto* match = sub.add_option("--match", evacuate.selector.pattern,
                               "select processes whose command line matches this extended "
                               "regular expression; several selectors must all match");
  sub.add_flag("--together", evacuate.together, "move all processes or none");
  add_move_options(sub, command, evacuate.migrate);
  add_timeout(sub, command, "time limit from the dump of a process to the decision; default: 120");
  add_output_options(sub, command, evacuate.migrate);
  sub.parse_complete_callback([&sub, target, cgroup, user, match] {
    if (has_unknown_option(sub)) return;
    if (!target.is_given()) throw CLI::RequiredError("--to HOST or --mount MOUNTPOINT");
    if (cgroup->count() + user->count() + match->count() == 0) {
      throw CLI::RequiredError("--cgroup G, --user U or --match PATTERN");
    }
  });
}

void add_migrate_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "migrate",
      "Move running processes to another node, while they run; if anything fails, they continue "
      "here");
  auto command = make_command<MigrateOrRecover>(sub, exit_code);
  MigrateCommand& migrate = command->migrate;
  auto* pid = sub.add_option("--pid", migrate.pids,
                             "process to move with all of its descendants; may be repeated")
                  ->check(pid_check())
                  ->type_name("PID")
                  ->allow_extra_args(false)  // one pid per --pid; "--" may follow it
                  ->take_all();
  auto* runc = sub.add_option("--runc", migrate.containers,
                              "runc container to move; both nodes need its bundle; may be repeated")
                   ->type_name("NAME")
                   ->allow_extra_args(false)
                   ->take_all();
  auto* unit = sub.add_option("--unit", migrate.unit,
                              "service of systemd to move with its unit; both nodes need the unit")
                   ->type_name("NAME")
                   ->excludes(pid)
                   ->excludes(runc);
  const TargetOptions target =
      add_target_options(sub, migrate.mountpoint, migrate.target_host, migrate.key_file);
  // A program that starts this command gives an ID, so that it can find the migration again even if
  // this process is killed.
  sub.add_option("--id", migrate.id)
      ->check([](const std::string& id) {
        return is_migration_id(id) ? "" : "'" + id + "' is not 32 hexadecimal digits";
      })
      ->group("");  // not shown
  auto* recover =
      sub.add_option("--recover", command->recover_id,
                     "finish or abort interrupted migrations, or the one with this ID, from the "
                     "records of both nodes")
          ->expected(0, 1)
          ->type_name("ID");
  sub.add_option("--set", command->set.digits,
                 "change max-rate=SIZE, cpu-share=PERCENT, slow-down=PERCENT, max-downtime=TIME or "
                 "max-time=TIME of a migration of this node while it copies memory")
      ->type_name("ID LIMIT=VALUE...");
  const auto add_pause = [&](const char* name, bool resume, const char* what) {
    const auto set = [command, resume](const std::string& digits) {
      command->pause.digits = digits;
      command->pause.resume = resume;
    };
    sub.add_option_function<std::string>(name, set, what)->type_name("ID");
  };
  add_pause("--pause", false,
            "stop copying memory of a migration of this node; its processes run on");
  add_pause("--resume", true, "go on copying after --pause");
  sub.add_option("--cancel", command->cancel.digits,
                 "abort a migration of this node that is not decided yet: its processes stay")
      ->type_name("ID");
  add_resolve(sub, command->resolve);
  add_move_options(sub, command, migrate);
  sub.add_flag("--independent", migrate.independent,
               "move each process independently; default: move all processes or none");
  sub.add_flag("--leave-running", migrate.move.leave_running,
               "copy the process: it continues here, and the copy runs at the target in a new pid "
               "namespace")
      ->excludes("--max-downtime")
      ->excludes("--max-time")
      ->excludes("--max-rate")
      ->excludes("--cpu-share")
      ->excludes("--slow-down")
      ->excludes("--on-timeout");
  add_timeout(
      sub, command,
      "time limit from the dump of a process to the decision, default: 120; with --recover, "
      "time limit to reach the other node, default: 10");
  add_output_options(sub, command, migrate);
  sub.parse_complete_callback([&sub, command, recover, pid, runc, unit, target] {
    if (has_unknown_option(sub)) return;
    command->recover = recover->count() > 0;
    if (command->recover) {
      return refuse_other_options(sub, "recover", {"timeout", "state-dir", "json"});
    }
    if (!command->set.digits.empty()) {
      return refuse_other_options(sub, "set", {"CRIU-OPTIONS", "state-dir", "json"});
    }
    if (!command->pause.digits.empty()) {
      return refuse_other_options(sub, command->pause.resume ? "resume" : "pause",
                                  {"state-dir", "json"});
    }
    if (!command->cancel.digits.empty()) {
      return refuse_other_options(sub, "cancel", {"state-dir", "json"});
    }
    if (!command->resolve.digits.empty()) {
      if (sub.count("--run-here") + sub.count("--discard") == 0) {
        throw CLI::RequiredError("--run-here or --discard with --resolve");
      }
      return refuse_other_options(sub, "resolve",
                                  {"run-here", "discard", "fence", "state-dir", "json"});
    }
    if (pid->count() + runc->count() + unit->count() == 0) {
      throw CLI::RequiredError("--pid PID, --runc NAME or --unit NAME (or --recover alone)");
    }
    if (!target.is_given()) throw CLI::RequiredError("--to HOST or --mount MOUNTPOINT");
  });
}

}  // namespace ppmr
