#include "restart_loader/criu_options.h"

#include <algorithm>

namespace ppmr {
namespace {

// The value of `option`, given as "-oX", "-o X", "--name=X" or "--name X".
std::optional<std::string> value_of(const std::vector<std::string>& options, size_t i,
                                    const std::string& short_name, const std::string& long_name) {
  const std::string& option = options[i];
  if ((!short_name.empty() && option == short_name) || option == long_name) {
    return i + 1 < options.size() ? std::optional(options[i + 1]) : std::nullopt;
  }
  if (option.starts_with(long_name + "=")) return option.substr(long_name.size() + 1);
  if (!short_name.empty() && option.starts_with(short_name) && !option.starts_with("--")) {
    return option.substr(short_name.size());
  }
  return std::nullopt;
}

}  // namespace

CriuOptions read_criu_options(const std::vector<std::string>& options) {
  CriuOptions told;
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i] == "--") break;  // what follows is a command for --exec-cmd
    if (options[i].starts_with("-v") || options[i].starts_with("--verbosity"))
      told.verbosity = true;
    if (auto value = value_of(options, i, "-o", "--log-file")) told.log_file = value;
    if (auto value = value_of(options, i, "", "--pidfile")) told.pid_file = value;
  }
  return told;
}

// CRIU reads a line as the option's name, without its dashes, and its value; it knows quotation
// marks around a word, but no way to have them in one with blanks.
Result<std::string> criu_configuration(const std::vector<std::string>& options) {
  std::string text;
  for (size_t i = 0; i < options.size(); ++i) {
    const size_t equals = std::min(options[i].find('='), options[i].size());
    const std::string name = options[i].substr(0, equals);
    if (!name.starts_with("--")) return failure(EINVAL, "'" + name + "' is no option of CRIU's");
    std::optional<std::string> value;
    if (equals < options[i].size()) {
      value = options[i].substr(equals + 1);
    } else if (i + 1 < options.size() && !options[i + 1].starts_with("--")) {
      value = options[++i];
    }
    text += name.substr(2);
    if (value) {
      const bool has_blanks = value->find_first_of(" \t\v\f\r") != std::string::npos;
      if (value->find('\n') != std::string::npos ||
          (has_blanks && value->find_first_of("\"\\") != std::string::npos)) {
        return failure(
            EINVAL, "CRIU's configuration cannot hold the value of " + name + ", '" + *value + "'");
      }
      text += has_blanks ? " \"" + *value + "\"" : "=" + *value;
    }
    text += '\n';
  }
  return text;
}

}  // namespace ppmr
