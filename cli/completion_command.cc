// Each script has one function that finds the command among the words ("job run"), and lists that
// hold its subcommands and options. The lists come from the parser itself, so they are complete.
#include "cli/completion_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "cli/completion_values.h"

namespace ppmr {
namespace {

struct OptionWords {
  std::vector<std::string> names;  // "--foreground", "-f"
  std::string description;
  bool takes_value = false;
};

struct CommandWords {
  std::string path;                                              // "", "target", "job run"
  std::vector<std::pair<std::string, std::string>> subcommands;  // pairs of name and description
  std::vector<OptionWords> options;
};

// Returns the kinds of values that `ppmr completion-values` can list for the options and the
// argument of the command: "--pid=pids --mount=mounts argument=mounts".
std::string kinds_of(const CommandWords& command) {
  std::string out;
  const auto add = [&](const std::string& option) {
    const std::string kind = kind_of_values(command.path, option);
    if (!kind.empty())
      out += (out.empty() ? "" : " ") + (option.empty() ? "argument" : option) + "=" + kind;
  };
  for (const OptionWords& option : command.options) {
    for (const std::string& name : option.names) add(name);
  }
  add("");
  return out;
}

bool is_internal(const CLI::App* command) { return command->get_group().empty(); }

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !is_internal(command); });
}

void gather(const CLI::App& app, const std::string& path, std::vector<CommandWords>& all) {
  CommandWords words{.path = path};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden: --help does not show this option either
    OptionWords found{.description = option->get_description(),
                      .takes_value = option->get_items_expected_max() > 0};
    for (const std::string& name : option->get_lnames()) found.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) found.names.push_back("-" + name);
    if (!found.names.empty()) words.options.push_back(std::move(found));
  }
  const auto commands = subcommands_of(app);
  for (const CLI::App* command : commands)
    words.subcommands.emplace_back(command->get_name(), command->get_description());
  all.push_back(std::move(words));
  for (const CLI::App* command : commands)
    gather(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), all);
}

// Quotes the text with single quotes for a shell. In single quotes, fish interprets \' and \\; the
// other shells do not.
std::string in_quotes(const std::string& text, bool fish = false) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += fish ? "\\'" : "'\\''";
    } else {
      out += fish && c == '\\' ? "\\\\" : std::string(1, c);
    }
  }
  return out + "'";
}

// Returns the paths of all commands, as alternatives of a shell's `case`: "target|job|job run".
std::string paths(const std::vector<CommandWords>& commands) {
  std::string out;
  for (const CommandWords& command : commands) {
    if (!command.path.empty()) out += (out.empty() ? "" : "|") + in_quotes(command.path);
  }
  return out;
}

std::string names_of_options(const CommandWords& command, bool with_value_only) {
  std::string out;
  for (const OptionWords& option : command.options) {
    if (with_value_only && !option.takes_value) continue;
    for (const std::string& name : option.names) out += (out.empty() ? "" : " ") + name;
  }
  return out;
}

// Shell code for bash and zsh that sets the variable `command` to the command among the words.
constexpr char kFindCommand[] = R"(  local command='' word
  for word in "${{words_before[@]}}"; do
    case "${{command:+$command }}$word" in
      {}) command="${{command:+$command }}$word" ;;
    esac
  done
)";

std::string bash_script(const std::vector<CommandWords>& commands) {
  std::string out = "# Completion of ppmr for bash, made by `ppmr completion bash`.\n_ppmr() {\n";
  out += "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n";
  out += "  local words_before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n";
  out += fmt::format(kFindCommand, paths(commands));
  out += "  local names='' options='' valued='' kinds='' kind='' wanted='' each\n";
  out += "  case $command in\n";
  for (const CommandWords& command : commands) {
    std::string names;
    for (const auto& [name, description] : command.subcommands)
      names += (names.empty() ? "" : " ") + name;
    out +=
        fmt::format("    {}) names={} options={} valued={} kinds={} ;;\n", in_quotes(command.path),
                    in_quotes(names), in_quotes(names_of_options(command, false)),
                    in_quotes(names_of_options(command, true)), in_quotes(kinds_of(command)));
  }
  out += R"sh(  esac
  COMPREPLY=()
  [[ " $valued " == *" $previous "* ]] && wanted=$previous
  for each in $kinds; do
    [[ $each == "${wanted:-argument}="* ]] && kind=${each#*=}
  done
  if [[ -z $wanted && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -n $kind ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(ppmr completion-values "$kind" 2>/dev/null)" -- "$current")
  elif [[ -z $wanted && -n $names ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current")
  fi
}
complete -o bashdefault -o default -F _ppmr ppmr
)sh";
  return out;
}

// Returns a line for _describe. `name` must not contain a colon, because a colon ends the name.
std::string zsh_entry(const std::string& name, const std::string& description) {
  return in_quotes(name + ":" + description);
}

std::string zsh_script(const std::vector<CommandWords>& commands) {
  std::string out =
      "#compdef ppmr\n# Completion of ppmr for zsh, made by `ppmr completion zsh`.\n_ppmr() {\n";
  out += "  local current=${words[CURRENT]} previous=${words[CURRENT-1]}\n";
  out += "  local -a words_before names options valued kinds values\n  local wanted='' kind=''\n";
  out += "  words_before=(${words[2,CURRENT-1]})\n";
  out += fmt::format(kFindCommand, paths(commands));
  out += "  case $command in\n";
  for (const CommandWords& command : commands) {
    std::string names, options;
    for (const auto& [name, description] : command.subcommands)
      names += "\n        " + zsh_entry(name, description);
    for (const OptionWords& option : command.options) {
      for (const std::string& name : option.names)
        options += "\n        " + zsh_entry(name, option.description);
    }
    out += fmt::format(
        "    {})\n      names=({})\n      options=({})\n      valued=({})\n      kinds=({}) ;;\n",
        in_quotes(command.path), names, options, names_of_options(command, true),
        kinds_of(command));
  }
  out += R"sh(  esac
  (( ${valued[(Ie)$previous]} )) && wanted=$previous
  kind=${${(M)kinds:#${wanted:-argument}=*}#*=}
  if [[ -n $kind && ( -n $wanted || $current != -* ) ]]; then
    values=(${(f)"$(ppmr completion-values $kind 2>/dev/null)"})
    compadd -a values
  elif [[ -n $wanted ]]; then
    _files
  elif [[ $current == -* ]]; then
    _describe -o option options
  elif (( $#names )); then
    _describe command names
  else
    _files
  fi
}
_ppmr "$@"
)sh";
  return out;
}

std::string fish_script(const std::vector<CommandWords>& commands) {
  std::string out = "# Completion of ppmr for fish, made by `ppmr completion fish`.\n";
  out += "function __ppmr_command_is\n  set -l command ''\n";
  out += "  for word in (commandline -opc)[2..-1]\n";
  out += "    switch (string trim -- \"$command $word\")\n      case";
  for (const CommandWords& command : commands) {
    if (!command.path.empty()) out += " " + in_quotes(command.path, true);
  }
  out += "\n        set command (string trim -- \"$command $word\")\n    end\n  end\n";
  out += "  test \"$command\" = \"$argv\"\nend\n";
  for (const CommandWords& command : commands) {
    const std::string when =
        fmt::format("complete -c ppmr -n {}", in_quotes("__ppmr_command_is " + command.path, true));
    for (const auto& [name, description] : command.subcommands)
      out += fmt::format("{} -f -a {} -d {}\n", when, name, in_quotes(description, true));
    for (const OptionWords& option : command.options) {
      out += when;
      for (const std::string& name : option.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      const std::string kind =
          option.names.empty() ? "" : kind_of_values(command.path, option.names.front());
      const std::string values =
          " -x -a " + in_quotes("(ppmr completion-values " + kind + ")", true);
      out += fmt::format("{} -d {}\n",
                         !kind.empty()        ? values
                         : option.takes_value ? " -r"
                                              : "",
                         in_quotes(option.description, true));
    }
    if (const std::string kind = kind_of_values(command.path, ""); !kind.empty()) {
      out += fmt::format("{} -f -a {}\n", when,
                         in_quotes("(ppmr completion-values " + kind + ")", true));
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  std::vector<CommandWords> commands;
  gather(app, "", commands);
  if (shell == "bash") return bash_script(commands);
  if (shell == "zsh") return zsh_script(commands);
  if (shell == "fish") return fish_script(commands);
  return "";
}

}  // namespace ppmr
