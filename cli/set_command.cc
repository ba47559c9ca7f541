#include "cli/set_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "cli/find_migration.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "processes/memory/slow_down.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

Status set_time(std::string_view value, std::optional<milliseconds>& time) {
  const auto parsed = parse_time(value);
  if (!parsed) return failure(parsed.error());
  if (*parsed <= milliseconds(0)) {
    return failure(EINVAL, fmt::format("'{}' is not a limit: a time must be more than 0", value));
  }
  time = *parsed;
  return {};
}

Status set_percent(std::string_view value, uint64_t least, uint64_t most,
                   std::optional<uint64_t>& share) {
  if (value.ends_with('%')) value.remove_suffix(1);
  uint64_t percent = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), percent);
  const bool is_number = error == std::errc() && end == value.data() + value.size();
  if (!is_number || percent < least || percent > most) {
    return failure(EINVAL, fmt::format("'{}' is not a share: it must be {} to {} percent", value,
                                       least, most));
  }
  share = percent;
  return {};
}

// Accepts "100MiB/s", too, because people type it.
Status set_rate(std::string_view value, std::optional<uint64_t>& rate) {
  if (value.ends_with("/s")) value.remove_suffix(2);
  const auto parsed = parse_size(value);
  if (!parsed) return failure(parsed.error());
  if (Status high_enough = check_max_rate(*parsed); !high_enough) return high_enough;
  rate = *parsed;
  return {};
}

Status set_limit(std::string_view text, ChangedLimits& limits) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  if (name == "max-rate") return set_rate(value, limits.max_rate_bytes_per_s);
  if (name == "cpu-share") return set_percent(value, 1, 100, limits.cpu_share_percent);
  if (name == "slow-down") {
    return set_percent(value, 0, kSlowDownMaxPercent, limits.slow_down_percent);
  }
  if (name == "max-downtime") return set_time(value, limits.max_downtime);
  if (name == "max-time") return set_time(value, limits.max_time);
  return failure(EINVAL, fmt::format("'{}' is not max-rate=SIZE, cpu-share=PERCENT, "
                                     "slow-down=PERCENT, max-downtime=TIME or max-time=TIME",
                                     text));
}

// Returns why the limits of the migration cannot be changed; empty: they can be changed.
std::string obstacle_of(const OwnershipRecord& record) {
  if (record.role == MigrationRole::kTarget) {
    return fmt::format("the processes come from {}: change them there", record.peer);
  }
  if (!record.plan.is_live) return "it copies no memory while the processes run";
  if (record.state() <= MigrationState::kDumping) return "";
  return fmt::format("it is {}, and copies no more memory while the processes run",
                     to_string(record.state()));
}

}  // namespace

Result<ChangedLimits> parse_changed_limits(const std::vector<std::string>& words) {
  ChangedLimits limits;
  bool any = false;
  for (const std::string& word : words) {
    std::string_view rest = word;
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view text = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      if (text.empty()) continue;
      if (Status set = set_limit(text, limits); !set) return failure(set.error());
      any = true;
    }
  }
  if (!any)
    return failure(EINVAL,
                   "nothing to change: name max-rate=, cpu-share=, slow-down=, max-downtime= or "
                   "max-time=");
  return limits;
}

int SetCommand::run() const {
  ignore_sigpipe();
  const auto fail = [&](const std::string& what, ExitCode code) {
    return report("migrate", {code, what}, json);
  };
  const auto changed = parse_changed_limits(limits);
  if (!changed) return fail("--set: " + changed.error().message, ExitCode::kUsage);
  const auto store = RecordStore::open(state_directory);
  if (!store) return fail(store.error().message, ExitCode::kFailure);
  const auto record = find_migration(*store, digits);
  if (!record) return fail(record.error().message, record.error().exit_code);
  const std::string& id = record->id;
  if (const std::string obstacle = obstacle_of(*record); !obstacle.empty()) {
    return fail(fmt::format("the limits of migration {} cannot be changed: {}", id, obstacle),
                ExitCode::kUsage);
  }
  const std::string directory = store->path_of(id, MigrationRole::kSource);
  if (Status written = write_changed_limits(directory, *changed); !written) {
    return fail(written.error().message, ExitCode::kFailure);
  }
  if (json) {
    print_whole(stdout, "{}\n", json_text({{"migration", id}, {"changed", true}}));
  } else {
    print_to(stdout, "{}: its limits are changed: {}\n", id, fmt::join(limits, " "));
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
