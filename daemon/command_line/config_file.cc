#include "daemon/command_line/config_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace ppmr {
namespace {

constexpr std::string_view kConfig = "--config";

// Returns the value of the last --config; empty if there is none.
std::string config_path(const std::vector<std::string>& arguments) {
  std::string path;
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string& argument = arguments[i];
    if (argument == kConfig && i + 1 < arguments.size()) path = arguments[i + 1];
    if (argument.starts_with(std::string(kConfig) + "="))
      path = argument.substr(kConfig.size() + 1);
  }
  return path;
}

// Returns the text of the file as CLI11 needs it: with quotes around addresses such as [::]:7440,
// which CLI11 would take for the beginning of a list. Errors: EINVAL for a name that occurs twice,
// whose values CLI11 would join.
Result<std::string> prepare(std::istream& file, const std::string& path) {
  static const std::regex assignment(R"(^\s*([\w-]+)\s*=.*$)");
  static const std::regex address(
      R"(^(\s*[\w-]+\s*=\s*)(\[[0-9A-Fa-f:.%\w]*:[0-9A-Fa-f:.%\w]*\]:\d+)\s*$)");
  std::string text;
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    std::smatch found;
    if (std::regex_match(line, found, assignment) && !names.insert(found[1]).second) {
      return failure(EINVAL, fmt::format("{}: `{}` occurs twice: remove one (a list is `{} = "
                                         "[\"a\", \"b\"]`)",
                                         path, found[1].str(), found[1].str()));
    }
    text += std::regex_replace(line, address, "$1\"$2\"") + "\n";
  }
  return text;
}

}  // namespace

void add_config_option(CLI::App& command) {
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command
      .add_option(std::string(kConfig),
                  "file with options, one `name = value` per line; the command line wins")
      ->type_name("FILE");
}

Result<std::vector<std::string>> with_config_file(const CLI::App& app,
                                                  std::vector<std::string> arguments) {
  if (arguments.empty()) return arguments;
  const auto commands = app.get_subcommands(
      [&](const CLI::App* candidate) { return candidate->get_name() == arguments.front(); });
  if (commands.empty()) return arguments;
  const CLI::App* command = commands.front();
  if (command->get_option_no_throw(std::string(kConfig)) == nullptr) return arguments;
  const std::string path = config_path(arguments);
  if (path.empty()) return arguments;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return system_failure(kConfig, path, EISDIR);
  std::ifstream file(path);
  if (!file) {
    const Error error = system_failure(kConfig, path).value();
    return failure(error.errno_value,
                   error.message +
                       ": name a file that exists; the package brings "
                       "/etc/ppmr/target.conf, and /usr/share/ppmr/source.conf and "
                       "protect.conf as models");
  }
  std::vector<std::string> added;
  auto prepared = prepare(file, path);
  if (!prepared) return failure(prepared.error());
  std::istringstream text(*prepared);
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(text)) {
    if (!item.parents.empty()) {
      return failure(EINVAL, fmt::format("{}: [{}]: sections have no meaning here: remove the line",
                                         path, item.parents.front()));
    }
    const std::string option = "--" + item.name;
    if (option == kConfig || command->get_option_no_throw(option) == nullptr) {
      return failure(EINVAL, fmt::format("{}: `{}` is not an option of ppmr {} that a file can set",
                                         path, item.name, command->get_name()));
    }
    for (const std::string& value : item.inputs) {
      // Refuses an empty value, because CLI11 would take the next argument as the value.
      if (value.empty())
        return failure(EINVAL,
                       fmt::format("{}: `{}` has no value: remove the line", path, item.name));
      added.push_back(option + "=" + value);
    }
  }
  arguments.insert(arguments.begin() + 1, added.begin(), added.end());
  return arguments;
}

}  // namespace ppmr
