#include "cli/pace_options.h"

#include "cli/set_command.h"

namespace ppmr {
namespace {

// Adds an option with the syntax and the checks that `ppmr migrate --set` has for the limit.
template <typename Take>
CLI::Option* add_limit(CLI::App& sub, const std::string& limit, const char* type,
                       const std::string& description, Take take) {
  const std::string option = "--" + limit;
  return sub
      .add_option_function<std::string>(
          option,
          [option, limit, take](const std::string& text) {
            const auto set = parse_changed_limits({limit + "=" + text});
            if (!set) throw CLI::ValidationError(option, set.error().message);
            take(*set);
          },
          description)
      ->type_name(type);
}

}  // namespace

PaceOptions add_pace_options(CLI::App& sub, LiveLimits& limits) {
  auto* max_rate = add_limit(
      sub, "max-rate", "SIZE",
      "bytes per second while the program runs, for each process and its descendants; default: as "
      "many as possible",
      [&limits](const ChangedLimits& set) {
        limits.max_rate_bytes_per_s = set.max_rate_bytes_per_s.value_or(0);
      });
  auto* cpu_share = add_limit(
      sub, "cpu-share", "PERCENT",
      "how much of one processor of this node the copying may take while the program runs; "
      "default: what the program leaves",
      [&limits](const ChangedLimits& set) {
        limits.cpu_share_percent = set.cpu_share_percent.value_or(0);
      });
  return {max_rate, cpu_share};
}

CLI::Option* add_slow_down_option(CLI::App& sub, LiveLimits& limits) {
  return add_limit(
      sub, "slow-down", "PERCENT",
      "how much of the time the program may stand still while it is copied, in stops of some "
      "milliseconds, if it writes its memory faster than it is sent; at most 95; default: 0",
      [&limits](const ChangedLimits& set) {
        limits.slow_down_percent = set.slow_down_percent.value_or(0);
      });
}

}  // namespace ppmr
