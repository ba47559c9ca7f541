// `ppmr keygen FILE`: makes the key that all nodes share.
#include "restart_loader/cli/keygen_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "mount/control/json_text.h"
#include "rdma_stream/connection/secret_file.h"
#include "restart_loader/migration/command_error.h"

namespace ppmr {

int KeygenCommand::run() const {
  const auto key = create_key_file(path);
  if (!key) return report("keygen", {ExitCode::kUsage, key.error().message}, json);
  if (json) {
    fmt::print("{}\n", json_text({{"ok", true}, {"file", path}, {"key_id", key_id(*key)}}));
  } else {
    fmt::print("{}: a new key, {}; copy it to the other nodes by a safe way (scp -p)\n", path,
               key_id(*key));
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
