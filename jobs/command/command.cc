#include "jobs/command/command.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_json.h"

namespace ppmr {
namespace {

// Every request has: token, directory, ID, patience, output, errors, number of arguments.
constexpr size_t kFieldsMin = 7;
constexpr size_t kIdBytes = 16;
constexpr std::string_view kDigits = "0123456789abcdef";

// Returns the number if the whole text is one; otherwise nullopt.
std::optional<uint64_t> parse_number(const std::string& text) {
  uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns whether the text is 32 hexadecimal digits. Other text must not become a part of a path.
bool is_command_id(const std::string& text) {
  return text.size() == 2 * kIdBytes && text.find_first_not_of(kDigits) == std::string::npos;
}

Result<Resumption> parse_resumption(const std::string* fields) {
  const auto patience_s = parse_number(fields[1]);
  const auto output = parse_number(fields[2]);
  const auto errors = parse_number(fields[3]);
  if (!is_command_id(fields[0]) || !patience_s || !output || !errors || *patience_s == 0 ||
      *patience_s > static_cast<uint64_t>(kResumptionPatienceMax.count())) {
    return failure(EPROTO, "malformed request: wrong ID, patience or position");
  }
  return Resumption{
      .id = fields[0], .patience = std::chrono::seconds(*patience_s), .got = {*output, *errors}};
}

}  // namespace

using nlohmann::json;

// Returns strings, each followed by a zero byte: token, directory, the four fields of the
// resumption (empty without one), number of arguments, arguments, environment. Arguments and
// environment may contain any byte but zero, even invalid UTF-8. Rejected: MessagePack, whose
// decoder in nlohmann::json exhausts the stack when a stranger sends deeply nested arrays.
std::string to_text(const CommandRequest& request) {
  std::string text;
  const auto add = [&](const std::string& field) { text.append(field).push_back('\0'); };
  add(request.token);
  add(request.directory);
  if (const auto& resumption = request.resumption) {
    add(resumption->id);
    add(std::to_string(resumption->patience.count()));
    add(std::to_string(resumption->got.output));
    add(std::to_string(resumption->got.errors));
  } else {
    text.append(4, '\0');
  }
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
  const auto arguments = parse_number(fields[kFieldsMin - 1]);
  if (!arguments || *arguments > fields.size() - kFieldsMin) {
    return failure(EPROTO, "malformed request: wrong number of arguments");
  }
  if (*arguments == 0) return failure(EPROTO, "the request names no command");
  const auto first = fields.begin() + kFieldsMin;
  const auto last = first + static_cast<ptrdiff_t>(*arguments);
  CommandRequest request{.token = fields[0],
                         .argv = {first, last},
                         .environment = {last, fields.end()},
                         .directory = fields[1]};
  if (!fields[2].empty()) {
    auto resumption = parse_resumption(&fields[2]);
    if (!resumption) return failure(resumption.error());
    request.resumption = std::move(*resumption);
  }
  return request;
}

Result<CommandEnd> parse_command_end(const std::string& text) {
  try {
    const json parsed = parse_json(text);
    return CommandEnd{.exit_code = parsed.at("exit_code"), .signal = parsed.at("signal")};
  } catch (const json::exception& error) {
    return failure(
        EPROTO,
        std::string(
            "malformed report of the command's end (install the same ppmr on both nodes): ") +
            error.what());
  }
}

std::string to_text(const InputPositions& positions) {
  return json_text({{"input", positions.input},
                    {"input_passed_on", positions.input_passed_on},
                    {"signals", positions.signals}});
}

Result<InputPositions> parse_input_positions(const std::string& text) {
  try {
    const json parsed = parse_json(text);
    return InputPositions{.input = parsed.at("input"),
                          .input_passed_on = parsed.at("input_passed_on"),
                          .signals = parsed.at("signals")};
  } catch (const json::exception& error) {
    return failure(
        EPROTO,
        std::string("malformed answer of the job node (install the same ppmr on both nodes): ") +
            error.what());
  }
}

void add_variables(std::vector<std::string>& environment, const std::vector<std::string>& node) {
  constexpr std::string_view kPreload = "LD_PRELOAD=";
  for (std::string added : node) {
    const std::string name = added.substr(0, added.find('=') + 1);
    for (const std::string& before : environment) {
      const bool keeps = name == kPreload && before.starts_with(name) && before != name;
      if (keeps) added += ":" + before.substr(name.size());
    }
    std::erase_if(environment, [&](const std::string& each) { return each.starts_with(name); });
    environment.push_back(std::move(added));
  }
}

std::string new_command_id() {
  std::array<unsigned char, kIdBytes> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  std::string id;
  for (const unsigned char byte : bytes) {
    id += kDigits[byte / 16];
    id += kDigits[byte % 16];
  }
  return id;
}

bool equal_tokens(const std::string& left, const std::string& right) {
  return !left.empty() && left.size() == right.size() &&
         CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace ppmr
