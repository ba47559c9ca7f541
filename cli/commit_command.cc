// `ppmr commit DIR`: sends a seal request to the daemon of either mount.
#include "cli/commit_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/screen/counted.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"

namespace ppmr {
namespace {

using nlohmann::json;

struct Sealed {
  CheckpointPath checkpoint;
  uint64_t files = 0;
  uint64_t bytes = 0;
  std::chrono::microseconds took{0};
};

// Waits until the target has the checkpoint on its disk. Refuses a path in a source mount, because
// only the target's daemon knows what is on its disk.
CommandResult<void> wait_until_kept(const CheckpointPath& checkpoint,
                                    const CommitCommand& command) {
  const auto status = ask(checkpoint.mount, to_request(request::Status{}));
  if (!status) return tl::unexpected(status.error());
  if (status->value("role", "") != "target") {
    return command_failure(ExitCode::kUsage,
                           command.path +
                               " is sealed, but --kept waits at the target only: run `ppmr commit "
                               "--kept` there, with a path in its mount");
  }
  // The daemon applies the time limit, because it can report why the checkpoint is not kept.
  const std::chrono::milliseconds timeout = command.timeout.value_or(std::chrono::hours(24));
  const json request = to_request(request::Wait{.checkpoint = checkpoint.name,
                                                .owner = "",
                                                .until = request::Wait::kKept,
                                                .timeout = timeout});
  const auto kept = ask_at_length(checkpoint.mount, request, std::nullopt);
  if (!kept) return tl::unexpected(kept.error());
  return {};
}

CommandResult<Sealed> seal(const CommitCommand& command) {
  auto checkpoint = find_checkpoint(command.path);
  if (!checkpoint) return tl::unexpected(checkpoint.error());
  const std::string top = checkpoint->mount.mountpoint + "/" + checkpoint->name;
  if (!checkpoint->inside.empty()) {
    return command_failure(
        ExitCode::kNotMounted,
        command.path + " is a part of a checkpoint: commit the whole checkpoint, " + top);
  }
  const auto began = std::chrono::steady_clock::now();
  auto answer = ask_at_length(checkpoint->mount, to_request(request::Commit{checkpoint->name, {}}),
                              command.timeout);
  if (answer && command.kept) {
    const auto kept = wait_until_kept(*checkpoint, command);
    if (!kept) return tl::unexpected(kept.error());
  }
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - began);
  if (!answer) {
    CommandError error = answer.error();
    error.message = "seal " + command.path + ": " + error.message;
    return tl::unexpected(std::move(error));
  }
  return Sealed{std::move(*checkpoint), answer->value("files", uint64_t{0}),
                answer->value("bytes", uint64_t{0}), took};
}

}  // namespace

int CommitCommand::run() const {
  ignore_sigpipe();
  const auto sealed = seal(*this);
  if (!sealed) return report("commit", sealed.error(), json);
  if (json) {
    print_whole(stdout, "{}\n",
                json_text({{"ok", true},
                           {"checkpoint", sealed->checkpoint.name},
                           {"mountpoint", sealed->checkpoint.mount.mountpoint},
                           {"files", sealed->files},
                           {"bytes", sealed->bytes},
                           {"kept", kept},
                           {"took_us", sealed->took.count()}}));
  } else {
    print_to(stdout, "sealed {}: {}, {} verified at the target{} in {}\n", path,
             counted(sealed->files, "file"), format_size(sealed->bytes),
             kept ? ", and kept there," : "", format_time(sealed->took));
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
