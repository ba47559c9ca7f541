#include "cli/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/cancel_command.h"
#include "cli/commit_command.h"
#include "cli/completion_command.h"
#include "cli/config_command.h"
#include "cli/devices_command.h"
#include "cli/doctor_command.h"
#include "cli/drain_command.h"
#include "cli/evacuate_command.h"
#include "cli/history_command.h"
#include "cli/keygen_command.h"
#include "cli/migrate_command.h"
#include "cli/migrations_command.h"
#include "cli/option_helpers.h"
#include "cli/protect_command.h"
#include "cli/rdma_command.h"
#include "cli/recover_command.h"
#include "cli/resolve_command.h"
#include "cli/restart_command.h"
#include "cli/set_command.h"
#include "cli/status_command.h"
#include "cli/takeover_command.h"
#include "cli/timeline_command.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "migration/protect/criu_session.h"
#include "migration/relay/criu_relay.h"
#include "migration/settle/settle.h"
#include "migration/target/migration_agent.h"
#include "migration/target/tree_restore.h"
#include "migration/target/unit_guest.h"
#include "preflight/preflight.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/passed_options.h"
#include "restart_loader/pager/serve_pages_command.h"

namespace ppmr {
namespace {

template <typename Command>
void add_timeout(CLI::App& app, std::shared_ptr<Command> command, const std::string& description) {
  app.add_option_function<std::string>(
         "--timeout",
         [command](const std::string& text) {
           const auto time = parse_time(text);
           if (!time) throw CLI::ValidationError("--timeout", time.error().message);
           command->timeout = *time;
         },
         description)
      ->type_name("SECONDS");
}

void add_commit(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "commit", "Seal a checkpoint; succeeds when the target has verified every byte");
  auto command = make_command<CommitCommand>(sub, exit_code);
  sub.add_option("DIR", command->path,
                 "checkpoint (a directory or a file) in a source or target mount")
      ->required();
  sub.add_flag("--kept", command->kept,
               "also wait until it is in the target's --keep-dir; at the target");
  add_timeout(sub, command, "time limit; default: the time limits of the daemon");
  sub.add_flag("--json", command->json, "print the result as one JSON object");
}

void add_restart(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "restart", "Restore processes with CRIU from a checkpoint in a target mount");
  auto command = make_command<RestartCommand>(sub, exit_code);
  sub.add_option("DIR", command->path, "checkpoint in a target mount")->required();
  sub.add_flag("--eager", command->eager,
               "run the program only after all of its memory is in place");
  sub.add_flag("--remove", command->remove, "remove the checkpoint after all memory is in place");
  sub.add_option("--work-dir", command->work_directory,
                 "directory for CRIU's logs; default: a new directory, kept after a failure")
      ->type_name("DIR");
  add_timeout(
      sub, command,
      "time limit for the checkpoint to be complete; default: none while its source is connected");
  sub.add_flag("--json", command->json, "print the result as one JSON object");
  sub.add_option("CRIU-OPTIONS", command->criu_options, "after --: options for criu restore")
      ->take_all();
}

void add_status(CLI::App& app, int& exit_code) {
  CLI::App& sub =
      *app.add_subcommand("status", "Show the ppmr mounts of this node and their checkpoints");
  auto command = make_command<StatusCommand>(sub, exit_code);
  sub.add_option("MOUNTPOINT", command->mountpoint, "mount to show; default: all");
  sub.add_flag("--json", command->json, "print one JSON object per mount and line");
  sub.add_flag("--watch", command->watch,
               "repeat every second; on a terminal a full-screen view, which q ends");
  sub.add_option("--state-dir", command->state_directory,
                 "directory for the records of migrations, which --watch shows on a terminal")
      ->capture_default_str();
}

void add_migrations(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "migrations", "List the migrations of this node that are in progress or not settled yet");
  auto command = make_command<MigrationsCommand>(sub, exit_code);
  sub.add_flag("--json", command->json, "print one JSON object per process tree and line");
  sub.add_option("--state-dir", command->state_directory, "directory for the records of migrations")
      ->capture_default_str();
}

void add_timeline(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "timeline", "Print a picture (SVG) of a migration: what happened in it, and when");
  auto command = make_command<TimelineCommand>(sub, exit_code);
  sub.add_option("ID", command->id,
                 "migration, or the first digits of its ID; default: the last one");
  sub.add_flag("--text", command->text, "print a chart of characters instead of SVG");
  sub.add_option("--state-dir", command->state_directory, "directory for the records of migrations")
      ->capture_default_str();
}

void add_history(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "history", "Show the past migrations of this node: what moved, and how long it stood still");
  auto command = make_command<HistoryCommand>(sub, exit_code);
  sub.add_option_function<std::string>(
         "--since",
         [command](const std::string& text) {
           const auto since = parse_duration(text);
           if (!since) throw CLI::ValidationError("--since", since.error().message);
           command->since = *since;
         },
         "show migrations that began at most this long ago, e.g. 90m, 12h, 7d; default: all")
      ->type_name("DURATION");
  sub.add_flag("--failed", command->failed,
               "show only migrations that did not move everything, or are unfinished");
  sub.add_option("--state-dir", command->state_directory, "directory for the records of migrations")
      ->capture_default_str();
  sub.add_flag("--json", command->json, "print one JSON object per migration and line");
}

void add_keygen(CLI::App& app, int& exit_code) {
  CLI::App& sub =
      *app.add_subcommand("keygen", "Create the key file with which nodes authenticate each other");
  auto command = make_command<KeygenCommand>(sub, exit_code);
  sub.add_option("FILE", command->path, "file to create, with mode 0600; copy it to all nodes")
      ->required();
  sub.add_flag("--json", command->json, "print the result as one JSON object");
}

void add_devices(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "devices", "Show the RDMA devices of this node and whether ppmr can use them");
  auto command = make_command<DevicesCommand>(sub, exit_code);
  sub.add_flag("--json", command->json, "print one JSON object per port and line");
}

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "doctor", "Check this node, and the way to a target, and say how to mend what is broken");
  auto command = make_command<DoctorCommand>(sub, exit_code);
  sub.add_option("MOUNTPOINT", command->mountpoint,
                 "check this mount only, and the target of a source mount; default: all mounts");
  sub.add_option("--target", command->target, "also check the target at this address")
      ->type_name("HOST:PORT");
  add_credential_options(sub, command->credentials);
  sub.add_option("--directory", command->directory, "directory of the configuration")
      ->type_name("DIR")
      ->capture_default_str();
  sub.add_flag("--json", command->json, "print one JSON object per check and line");
}

void add_drain(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "drain", "Let a mount begin nothing new, and wait until what it does is finished");
  auto command = make_command<DrainCommand>(sub, exit_code);
  sub.add_option("MOUNTPOINT", command->mountpoint, "source or target mount")->required();
  sub.add_flag("--resume", command->resume, "let the mount begin checkpoints again");
  add_timeout(sub, command, "time limit; the mount stays drained. Default: none");
  sub.add_flag("--json", command->json, "print the result as one JSON object");
}

void add_config(CLI::App& app, int& exit_code) {
  CLI::App& config = *app.add_subcommand("config", "Check configuration files");
  config.require_subcommand(1);
  CLI::App& sub = *config.add_subcommand(
      "check", "Check the configuration files of the daemons, and start nothing");
  auto command = std::make_shared<ConfigCheckCommand>();
  sub.callback([command, &exit_code] { exit_code = command->run(); });
  sub.add_option("FILE", command->files, "target.conf or source.d/NAME.conf; default: all");
  sub.add_option("--directory", command->directory, "directory of the configuration")
      ->type_name("DIR")
      ->capture_default_str();
}

void add_rdma(CLI::App& app, int& exit_code) {
  CLI::App& rdma = *app.add_subcommand("rdma", "Start programs that use RDMA and can be moved");
  rdma.require_subcommand(1);
  CLI::App& sub = *rdma.add_subcommand("run", "Start a program whose use of RDMA can be moved");
  auto command = std::make_shared<RdmaRunCommand>();
  sub.callback([command, &exit_code] { exit_code = command->run(); });
  sub.add_option("--directory", command->directory,
                 "directory that all machines share, in which peers find each other")
      ->type_name("DIR");
  sub.add_option("PROGRAM", command->program, "after --: the program and its arguments")
      ->required()
      ->take_all()
      ->type_name("");
}

void add_completion(CLI::App& app, int& exit_code) {
  CLI::App& sub =
      *app.add_subcommand("completion", "Print the script with which a shell completes ppmr");
  auto shell = std::make_shared<std::string>();
  sub.add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  sub.callback([shell, &app, &exit_code] {
    print_to(stdout, "{}", completion_script(app, *shell));
    exit_code = to_int(ExitCode::kSuccess);
  });
}

// Starts a migration, or does something about one that has begun.
struct MigrateOrRecover {
  MigrateCommand migrate;
  bool recover = false;
  std::string recover_id;
  ResolveCommand resolve;
  CancelCommand cancel;
  SetCommand set;
  std::optional<std::chrono::milliseconds> timeout;
  bool json = false;

  int run() {
    if (!set.digits.empty()) {
      set.limits = migrate.criu_options;
      set.state_directory = migrate.state_directory;
      set.json = json;
      return set.run();
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
  sub.add_option_function<std::string>(
         "--max-rate",
         [&limits = migrate.limits](const std::string& text) {
           const auto set = parse_changed_limits({"max-rate=" + text});
           if (!set) throw CLI::ValidationError("--max-rate", set.error().message);
           limits.max_rate_bytes_per_s = set->max_rate_bytes_per_s.value_or(0);
         },
         "bytes per second of these rounds, for each process and its descendants; default: as many "
         "as possible")
      ->type_name("SIZE")
      ->excludes(stop_and_copy)
      ->excludes(eager);
  sub.add_option_function<std::string>(
         "--on-timeout",
         [&limits = migrate.limits](const std::string& text) {
           const auto parsed = parse_on_timeout(text);
           if (!parsed) throw CLI::ValidationError("--on-timeout", parsed.error().message);
           limits.on_timeout = *parsed;
         },
         "what happens if the rest does not fit by then: freeze (the program stands still for "
         "longer) or cancel (it stays)")
      ->type_name("freeze|cancel")
      ->default_str("freeze")
      ->excludes(stop_and_copy)
      ->excludes(eager);
  sub.add_option("--allow-loss", migrate.allowed_losses,
                 "what the processes may lose in the move without a word of CRIU; may be repeated")
      ->check(CLI::IsMember({kLandlock}))
      ->type_name(kLandlock)
      ->allow_extra_args(false)
      ->take_all();
  sub.add_flag("--dry-run", migrate.dry_run, "run only the checks on both nodes");
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

void add_evacuate(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "evacuate",
      "Move all processes that match to the target of a source mount, each one independently");
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

// `action` starts no migration, so an option for a new migration is a mistake of the user.
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

void add_migrate(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "migrate",
      "Move running processes to the target of a source mount; if anything fails, they continue "
      "here");
  auto command = make_command<MigrateOrRecover>(sub, exit_code);
  MigrateCommand& migrate = command->migrate;
  auto* pid = sub.add_option("--pid", migrate.pids,
                             "process to move with all of its descendants; may be repeated")
                  ->check(CLI::Range(pid_t{1}, std::numeric_limits<pid_t>::max()))
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
  // For a program that must find the migration again, whatever becomes of this process.
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
                 "change max-rate=SIZE, max-downtime=TIME or max-time=TIME of a migration of this "
                 "node while it copies memory")
      ->type_name("ID LIMIT=VALUE...");
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
    if (pid->count() + runc->count() + unit->count() == 0 || !target.is_given()) {
      throw CLI::RequiredError(
          "--pid PID, --runc NAME or --unit NAME with --to HOST or --mount MOUNTPOINT (or "
          "--recover alone)");
    }
  });
}

template <typename Command>
std::shared_ptr<Command> add_internal(CLI::App& app, const std::string& name, int& exit_code,
                                      CLI::App*& sub) {
  sub = app.add_subcommand(name)->group("");  // hides the subcommand from --help
  auto command = std::make_shared<Command>();
  sub->callback([command, &exit_code] {
    disable_core_dumps();
    exit_code = command->run();
  });
  return command;
}

// Adds the subcommands that the daemons, CRIU and `ppmr migrate` start.
void add_internal_commands(CLI::App& app, int& exit_code) {
  CLI::App* sub = nullptr;
  auto agent = add_internal<MigrationAgent>(app, "migration-agent", exit_code, sub);
  sub->add_option("--fd", agent->fd)->required();
  sub->add_option("--state-dir", agent->state_directory)->required();
  sub->add_option("--mountpoint", agent->mountpoint)->required();
  sub->add_option("--peer", agent->peer)->required();
  sub->add_option("--restart-policy", agent->restart_policy);
  sub->add_flag("--allow-root-restart", agent->allow_root_restart);
  sub->add_option("--audit-file", agent->audit_file);
  auto settle = add_internal<SettleCommand>(app, "migration-settle", exit_code, sub);
  sub->add_option("--role", settle->role)->required()->check(CLI::IsMember({"source", "target"}));
  sub->add_option("--state-dir", settle->state_directory)->required();
  sub->add_option("--mountpoint", settle->mountpoint)->required();
  auto restore = add_internal<TreeRestoreCommand>(app, "migration-restore", exit_code, sub);
  sub->add_option("--state-dir", restore->state_directory)->required();
  sub->add_option("--id", restore->id)->required();
  sub->add_option("--tree", restore->tree)->required();
  auto unit = add_internal<UnitGuestCommand>(app, "migration-unit", exit_code, sub);
  sub->add_option("--state-dir", unit->state_directory)->required();
  sub->add_option("--id", unit->id)->required();
  sub->add_flag("--forget", unit->forget);
  auto pager = add_internal<ServePagesCommand>(app, "serve-pages", exit_code, sub);
  sub->add_option("--images", pager->images)->required();
  sub->add_option("--bundle", pager->bundle);
  sub->add_option("--memory", pager->memory);
  sub->add_option("--complete", pager->complete);
  sub->add_option("--shared-images", pager->shared_images);
  sub->add_flag("--fill-early", pager->fill_early);
  sub->add_option("--work", pager->work)->required();
  sub->add_option("--ready-fd", pager->ready_fd);
  auto guard = add_internal<PagesGuard>(app, "guard-pages", exit_code, sub);
  sub->add_option("--work", guard->work_directory)->required();
  sub->add_option("--root", guard->restored_root)->required()->check(CLI::PositiveNumber);
  auto relay = add_internal<CriuRelay>(app, "migration-relay", exit_code, sub);
  sub->add_option("--state-dir", relay->state_directory)->required();
  sub->add_option("--id", relay->id)->required();
  sub->add_option("--role", relay->role)->required()->check(CLI::IsMember({"source", "target"}));
  sub->add_option("--tree", relay->tree)->required();
  sub->add_option("--criu", relay->criu)->required();
  sub->add_option("--work-dir", relay->work_directory)->required();
  sub->add_flag("--alone", relay->alone);
  sub->add_option("arguments", relay->arguments)->take_all();
  add_dumping_criu_command(app, exit_code);
}

}  // namespace

void add_restart_commands(CLI::App& app, int& exit_code) {
  add_commit(app, exit_code);
  add_restart(app, exit_code);
  add_migrate(app, exit_code);
  add_evacuate(app, exit_code);
  add_protect_command(app, exit_code);
  add_takeover_command(app, exit_code);
  add_status(app, exit_code);
  add_migrations(app, exit_code);
  add_timeline(app, exit_code);
  add_history(app, exit_code);
  add_doctor(app, exit_code);
  add_drain(app, exit_code);
  add_keygen(app, exit_code);
  add_config(app, exit_code);
  add_completion(app, exit_code);
  add_devices(app, exit_code);
  add_rdma(app, exit_code);
  add_internal_commands(app, exit_code);
}

}  // namespace ppmr
