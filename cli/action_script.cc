#include "cli/action_script.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/exit_code.h"
#include "cli/commit_command.h"
#include "daemon/command_line/command_error.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"

namespace ppmr {

std::optional<int> run_action_script() {
  const char* action = std::getenv("CRTOOLS_SCRIPT_ACTION");
  if (action == nullptr) return std::nullopt;
  const std::string_view stage = action;
  if (stage != "pre-dump" && stage != "post-dump") return to_int(ExitCode::kSuccess);
  const char* images = std::getenv("CRTOOLS_IMAGE_DIR");
  if (images == nullptr) {
    return report("commit",
                  {ExitCode::kUsage, "CRIU has not set CRTOOLS_IMAGE_DIR for its action script"},
                  false);
  }
  if (stage == "pre-dump") {
    // If this request fails, the dump is only slower. Post-dump reports the reason.
    if (const auto checkpoint = find_checkpoint(images)) {
      (void)ask(checkpoint->mount, to_request(request::DeferErrors{checkpoint->name}));
    }
    return to_int(ExitCode::kSuccess);
  }
  CommitCommand commit;
  commit.path = images;
  return commit.run();
}

}  // namespace ppmr
