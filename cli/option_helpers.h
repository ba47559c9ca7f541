// What the definitions of several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/command_line/command_error.h"
#include "daemon/command_line/size_option.h"

namespace ppmr {

// Keeps the memory of a command out of core dumps, because it may hold images of processes, and
// keys. The programs that the command starts do not inherit this: CRIU, and processes that CRIU
// restores, can dump their core as before.
void disable_core_dumps();

// Creates a command that `app` runs; a callback of `app` owns it.
template <typename Command>
std::shared_ptr<Command> make_command(CLI::App& app, int& exit_code) {
  auto command = std::make_shared<Command>();
  app.callback([command, name = app.get_name(), &exit_code] {
    disable_core_dumps();
    try {
      exit_code = command->run();
    } catch (const nlohmann::json::exception& error) {
      exit_code = report(
          name,
          {ExitCode::kDaemonSilent,
           std::string("cannot parse the daemon's reply (restart the daemon with this ppmr): ") +
               error.what()},
          command->json);
    }
  });
  return command;
}

// Adds --timeout, in seconds, for `command->timeout`.
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

// Returns the error for a `path` that is in no mount. `error`: from find_mount().
CommandError no_mount(const std::string& path, const Error& error);

// The options that name the target: --mount, --to and --key-file.
struct TargetOptions {
  CLI::Option* mount;
  CLI::Option* to;
  bool is_given() const { return mount->count() + to->count() > 0; }
};

// Returns the check of --to: it accepts what parse_target_host() accepts.
CLI::Validator target_host_check();
// Adds --key-file, which needs `to`.
void add_target_key_option(CLI::App& sub, std::string& key_file, CLI::Option* to);

TargetOptions add_target_options(CLI::App& sub, std::string& mountpoint, std::string& target_host,
                                 std::string& key_file);

// Adds --wide to all commands that print tables. main() applies the option.
void add_wide_options(CLI::App& app);

// A parse_complete_callback() that misses an option returns first if this is true. CLI11 reports
// the unknown option afterwards. Its message helps more, because a misspelt option looks like a
// missing one.
inline bool has_unknown_option(const CLI::App& sub) { return sub.remaining_size() > 0; }

}  // namespace ppmr
