#include "cli/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commit_command.h"
#include "cli/completion_command.h"
#include "cli/config_command.h"
#include "cli/devices_command.h"
#include "cli/doctor_command.h"
#include "cli/drain_command.h"
#include "cli/history_command.h"
#include "cli/internal_commands.h"
#include "cli/keygen_command.h"
#include "cli/migrate_options.h"
#include "cli/migrations_command.h"
#include "cli/option_helpers.h"
#include "cli/protect_command.h"
#include "cli/rdma_command.h"
#include "cli/restart_command.h"
#include "cli/status_command.h"
#include "cli/takeover_command.h"
#include "cli/timeline_command.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"

namespace ppmr {
namespace {

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
      "history",
      "Show the past migrations of this node (what moved, and how long it stood still) and the "
      "protected processes");
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
  sub.add_flag("--json", command->json,
               "print one JSON object per migration or protected process, and line");
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
    print_whole(stdout, "{}", completion_script(app, *shell));
    exit_code = to_int(ExitCode::kSuccess);
  });
}

}  // namespace

void add_restart_commands(CLI::App& app, int& exit_code) {
  add_commit(app, exit_code);
  add_restart(app, exit_code);
  add_migrate_command(app, exit_code);
  add_evacuate_command(app, exit_code);
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
