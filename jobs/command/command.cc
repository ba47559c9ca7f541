#include "jobs/command/command.h"

#include <openssl/crypto.h>

#include <nlohmann/json.hpp>

#include "mount/control/json_text.h"

namespace ppmr {

using nlohmann::json;

std::string to_text(const CommandRequest& request) {
  const json packed = {{"token", request.token},
                       {"argv", request.argv},
                       {"environment", request.environment},
                       {"directory", request.directory}};
  std::string bytes;
  json::to_msgpack(packed, bytes);  // keeps bytes that are not UTF-8
  return bytes;
}

std::string to_text(const CommandEnd& end) {
  return json_text({{"exit_code", end.exit_code}, {"signal", end.signal}});
}

Result<CommandRequest> parse_command_request(const std::string& text) {
  try {
    const json parsed = json::from_msgpack(text);
    CommandRequest request{.token = parsed.at("token"),
                           .argv = parsed.at("argv").get<std::vector<std::string>>(),
                           .environment = parsed.at("environment").get<std::vector<std::string>>(),
                           .directory = parsed.at("directory")};
    if (request.argv.empty()) return failure(EPROTO, "the request names no command");
    return request;
  } catch (const json::exception& error) {
    return failure(EPROTO, std::string("malformed request: ") + error.what());
  }
}

Result<CommandEnd> parse_command_end(const std::string& text) {
  try {
    const json parsed = json::parse(text);
    return CommandEnd{.exit_code = parsed.at("exit_code"), .signal = parsed.at("signal")};
  } catch (const json::exception& error) {
    return failure(EPROTO, std::string("malformed end of a command: ") + error.what());
  }
}

bool equal_tokens(const std::string& left, const std::string& right) {
  return !left.empty() && left.size() == right.size() &&
         CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace ppmr
