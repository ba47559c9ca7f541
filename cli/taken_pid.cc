#include "cli/taken_pid.h"

#include <charconv>
#include <string_view>

namespace ppmr {

// Reads the pid from the message of the outcome. It contains CRIU's own error text, to which
// restart_loader/criu/criu_log.cc adds an explanation.
std::optional<pid_t> taken_pid(const MigrationOutcome& outcome) {
  constexpr std::string_view kBefore = "Can't fork for ";
  constexpr std::string_view kAfter = ": File exists";
  if (outcome.exit_code != ExitCode::kMigrationAborted) return {};
  std::string_view text = outcome.message;
  const size_t begin = text.find(kBefore);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + kBefore.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc{} || pid <= 0) return {};
  text.remove_prefix(end - text.data());
  return text.starts_with(kAfter) ? std::optional<pid_t>(pid) : std::nullopt;
}

}  // namespace ppmr
