// `ppmr keygen FILE`: creates the key that all nodes share.
#include "cli/keygen_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

int KeygenCommand::run() const {
  ignore_sigpipe();
  const auto key = create_key_file(path);
  if (!key) {
    const char* remedy = key.error().errno_value == ENOENT
                             ? ": make its directory first (mkdir -p), or choose another file"
                             : "";
    return report("keygen", {ExitCode::kUsage, key.error().message + remedy}, json);
  }
  if (json) {
    print_whole(stdout, "{}\n",
                json_text({{"ok", true}, {"file", path}, {"key_id", key_id(*key)}}));
  } else {
    print_to(stdout, "created {} with the key {}; copy it to the other nodes (scp -p)\n", path,
             key_id(*key));
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
