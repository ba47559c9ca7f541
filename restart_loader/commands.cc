#include "restart_loader/commands.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "mount/size_option.h"
#include "restart_loader/command_error.h"
#include "restart_loader/commit_command.h"
#include "restart_loader/devices_command.h"
#include "restart_loader/keygen_command.h"
#include "restart_loader/restart_command.h"
#include "restart_loader/status_command.h"

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

// The command lives as long as the app, in its callbacks.
template <typename Command>
std::shared_ptr<Command> make_command(CLI::App& app, int& exit_code) {
  auto command = std::make_shared<Command>();
  app.callback([command, name = app.get_name(), &exit_code] {
    try {
      exit_code = command->run();
    } catch (const nlohmann::json::exception& error) {
      exit_code = report(
          name,
          {ExitCode::kDaemonSilent, std::string("the daemon's answer is not to be understood "
                                                "(is it of another version?): ") +
                                        error.what()},
          command->json);
    }
  });
  return command;
}

void add_commit(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "commit", "Seal a checkpoint: exit 0 only when the target has verified every byte");
  auto command = make_command<CommitCommand>(sub, exit_code);
  sub.add_option("DIR", command->path,
                 "the checkpoint (a directory or file) in a source or target mount")
      ->required();
  add_timeout(sub, command, "give up after so long; without it, when the daemon gives up");
  sub.add_flag("--json", command->json, "print one JSON object");
}

void add_restart(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "restart", "Restore a process from a checkpoint in the target mount, with CRIU");
  auto command = make_command<RestartCommand>(sub, exit_code);
  sub.add_option("DIR", command->path, "the checkpoint in the target mount")->required();
  sub.add_flag("--eager", command->eager, "let it run only when all of its memory is in place");
  sub.add_flag("--remove", command->remove,
               "remove the checkpoint once the process has all of its memory");
  sub.add_option(
         "--work-dir", command->work_directory,
         "where CRIU's logs go; without it a fresh directory, which is kept after a failure")
      ->type_name("DIR");
  add_timeout(
      sub, command,
      "wait so long for the checkpoint to be complete; without it, as long as its source lives");
  sub.add_flag("--json", command->json, "print one JSON object");
  sub.add_option("CRIU-OPTIONS", command->criu_options,
                 "after --: passed on to criu restore as they are")
      ->take_all();
}

void add_status(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand("status", "Show the ppmr mounts and their checkpoints");
  auto command = make_command<StatusCommand>(sub, exit_code);
  sub.add_option("MOUNTPOINT", command->mountpoint, "this mount alone; without it, all");
  sub.add_flag("--json", command->json, "print one JSON object a line, one for each mount");
  sub.add_flag("--watch", command->watch, "again each second");
}

void add_keygen(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "keygen", "Make the key file by which nodes know each other; give it to all of them");
  auto command = make_command<KeygenCommand>(sub, exit_code);
  sub.add_option("FILE", command->path, "a new file; it gets mode 0600")->required();
  sub.add_flag("--json", command->json, "print one JSON object");
}

void add_devices(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "devices", "Show the RDMA devices of this machine, and whether ppmr can use them");
  auto command = make_command<DevicesCommand>(sub, exit_code);
  sub.add_flag("--json", command->json, "print one JSON object a line, one for each port");
}

}  // namespace

void add_restart_commands(CLI::App& app, int& exit_code) {
  add_commit(app, exit_code);
  add_restart(app, exit_code);
  add_status(app, exit_code);
  add_keygen(app, exit_code);
  add_devices(app, exit_code);
}

}  // namespace ppmr
