// The ppmr binary: runs a subcommand.
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "base/version.h"
#include "cli/action_script.h"
#include "cli/commands.h"
#include "cli/option_helpers.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/config_file.h"
#include "daemon/command_line/output.h"
#include "daemon/privilege/helper_process.h"
#include "fuse_source/source_command.h"
#include "fuse_target/keep/kept_directory_command.h"
#include "fuse_target/target_command.h"
#include "jobs/cli/job_commands.h"
#include "processes/memory/page_reader.h"
#include "processes/process_identity.h"
#include "rdma_stream/wire/wire_handshake.h"

namespace {

// "help migrate" is what people type for "migrate --help".
std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  const auto known = app.get_subcommands([](const CLI::App*) { return true; });
  const bool is_known = std::any_of(known.begin(), known.end(), [&](const CLI::App* command) {
    return !arguments.empty() && command->get_name() == arguments.front();
  });
  if (!arguments.empty() && !is_known) return arguments;
  arguments.push_back("--help");
  return arguments;
}

// Returns the words of the command whose options were parsed: "rdma run".
std::string name_of_chosen(const CLI::App& app) {
  std::string name;
  for (auto chosen = app.get_subcommands(); !chosen.empty();
       chosen = chosen.front()->get_subcommands()) {
    name += (name.empty() ? "" : " ") + chosen.front()->get_name();
  }
  return name;
}

std::string version_text() {
  const std::string commit = ppmr::kCommit;
  return std::string("ppmr ") + ppmr::kVersion + " (wire version " +
         std::to_string(ppmr::wire::kVersion) + ", " +
         (commit.empty() ? "no commit: not built by ./package" : "commit " + commit) + ")";
}

}  // namespace

int main(int argc, char** argv) {
  // ppmr starts itself as /proc/self/exe. Without this name, ps and top would show "exe".
  prctl(PR_SET_NAME, "ppmr");
  // The parent process may have set SIGCHLD to be ignored. The exit statuses of child processes
  // would then be lost.
  std::signal(SIGCHLD, SIG_DFL);
  // Reads both IDs while descriptors are free. Later calls return the same IDs without a read.
  (void)ppmr::read_boot_id();
  (void)ppmr::read_node_id();
  if (argc == 1) {
    if (const auto done = ppmr::run_action_script()) return *done;
  }
  CLI::App app("Move running processes between nodes.", "ppmr");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  int exit_code = ppmr::to_int(ppmr::ExitCode::kSuccess);
  ppmr::add_source_command(app, exit_code);
  ppmr::add_target_command(app, exit_code);
  ppmr::add_kept_directory_command(app, exit_code);
  ppmr::add_restart_commands(app, exit_code);
  ppmr::add_job_commands(app, exit_code);
  ppmr::add_privileged_helper_command(app, exit_code);
  ppmr::add_page_reader_command(app, exit_code);
  ppmr::add_wide_options(app);
  const std::vector<std::string> words = with_help(app, {argv + 1, argv + argc});
  const auto end_of_options = std::find(words.begin(), words.end(), "--");
  if (std::find(words.begin(), end_of_options, "--wide") != end_of_options) {
    ppmr::keep_lines_whole();  // also those of the parser's errors
  }
  const bool json = std::find(words.begin(), end_of_options, "--json") != end_of_options;
  auto arguments = ppmr::with_config_file(app, words);
  if (!arguments) {
    return ppmr::report("", {ppmr::ExitCode::kUsage, arguments.error().message}, json);
  }
  // CLI11 takes the arguments from the end of the vector.
  std::reverse(arguments->begin(), arguments->end());
  try {
    app.parse(std::move(*arguments));
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream text;
    const int code = app.exit(help_or_version, text, text);
    ppmr::print_text(stdout, text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    const std::string name = name_of_chosen(app);
    std::string what = error.what();
    if (name.empty() && !words.empty()) what = "unknown subcommand " + words.front();
    what += " (see ppmr " + name + (name.empty() ? "" : " ") + "--help)";
    return ppmr::report(name, {ppmr::ExitCode::kUsage, what}, json);
  }
  return exit_code;
}
