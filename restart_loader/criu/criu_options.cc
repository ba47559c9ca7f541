#include "restart_loader/criu/criu_options.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace ppmr {
namespace {

// The methods, in the order of the enum criu_network_lock_method of rpc.proto, whose first value is
// 1.
constexpr std::array<std::string_view, 3> kNetworkLocks = {"=iptables", "=nftables", "=skip"};

// Returns the value of `option`, which may be given as "-oX", "-o X", "--name=X" or "--name X".
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
  CriuOptions found;
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i] == "--") break;  // the command of --exec-cmd follows
    if (options[i].starts_with("-v") || options[i].starts_with("--verbosity"))
      found.verbosity = true;
    if (auto value = value_of(options, i, "-o", "--log-file")) found.log_file = value;
    if (auto value = value_of(options, i, "", "--pidfile")) found.pid_file = value;
  }
  return found;
}

Result<CriuSettings> criu_settings(const std::vector<std::string>& options) {
  CriuSettings settings;
  for (size_t i = 0; i < options.size(); ++i) {
    const size_t equals = std::min(options[i].find('='), options[i].size());
    const std::string name = options[i].substr(0, equals);
    if (!name.starts_with("--")) return failure(EINVAL, "option '" + name + "': use its long name");
    std::string value = options[i].substr(equals);
    if (value.empty() && i + 1 < options.size() && !options[i + 1].starts_with("--")) {
      value = "=" + options[++i];
    }
    if (name == "--external" && !value.empty()) {
      settings.externals.push_back(value.substr(1));
    } else if (name == "--network-lock") {
      const auto method = std::find(kNetworkLocks.begin(), kNetworkLocks.end(), value);
      if (method == kNetworkLocks.end()) {
        return failure(
            EINVAL, "invalid option --network-lock" + value + ": use iptables, nftables or skip");
      }
      settings.network_lock = static_cast<uint32_t>(method - kNetworkLocks.begin()) + 1;
    } else if (value.find_first_of(" \t\n\v\f\r") != std::string::npos) {
      return failure(EINVAL, "CRIU accepts no spaces in the value of " + name + value);
    } else {
      settings.configuration += name.substr(2) + value + "\n";
    }
  }
  return settings;
}

}  // namespace ppmr
