#include "jobs/command/command.h"

#include <openssl/crypto.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_json.h"

namespace ppmr {
namespace {

constexpr size_t kFieldsMin = 3;  // token, directory, number of arguments

}  // namespace

using nlohmann::json;

// Returns strings, each followed by a zero byte: token, directory, number of arguments, arguments,
// environment. Arguments and environment may contain any other byte, also invalid UTF-8. Rejected:
// MessagePack, whose decoder in nlohmann::json exhausts the stack when a stranger sends deeply
// nested arrays.
std::string to_text(const CommandRequest& request) {
  std::string text;
  const auto add = [&](const std::string& field) { text.append(field).push_back('\0'); };
  add(request.token);
  add(request.directory);
  add(std::to_string(request.argv.size()));
  for (const std::string& argument : request.argv) add(argument);
  for (const std::string& variable : request.environment) add(variable);
  return text;
}

std::string to_text(const CommandEnd& end) {
  return json_text({{"exit_code", end.exit_code}, {"signal", end.signal}});
}

Result<CommandRequest> parse_command_request(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\0', at);
    if (end == std::string::npos) return failure(EPROTO, "malformed request: cut off");
    fields.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (fields.size() < kFieldsMin) return failure(EPROTO, "malformed request: too short");
  size_t arguments = 0;
  const std::string& count = fields[2];
  const auto parsed = std::from_chars(count.data(), count.data() + count.size(), arguments);
  if (parsed.ec != std::errc() || parsed.ptr != count.data() + count.size() ||
      arguments > fields.size() - kFieldsMin) {
    return failure(EPROTO, "malformed request: wrong number of arguments");
  }
  if (arguments == 0) return failure(EPROTO, "the request names no command");
  const auto first = fields.begin() + kFieldsMin;
  const auto last = first + static_cast<ptrdiff_t>(arguments);
  return CommandRequest{.token = fields[0],
                        .argv = {first, last},
                        .environment = {last, fields.end()},
                        .directory = fields[1]};
}

Result<CommandEnd> parse_command_end(const std::string& text) {
  try {
    const json parsed = parse_json(text);
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
