#include "restart_loader/criu_options.h"

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

}  // namespace ppmr
