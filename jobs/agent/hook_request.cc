#include "jobs/agent/hook_request.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/parse_json.h"
#include "base/whole_file.h"

namespace ppmr {

using nlohmann::json;

// A program creates the file first, then writes. So a new file that is empty may become a request
// for a certain spare. The evacuation must not begin with another one.
Result<HookRequest> parse_hook_request(const std::string& text, std::chrono::nanoseconds age) {
  const json request = parse_json(text);
  if (request.is_object()) {
    const json to = request.value("to", json(""));
    if (to.is_string()) return HookRequest{to.get<std::string>()};
    return failure(EINVAL, "malformed request: `to` is not the name of a host");
  }
  // A time in the future is one from before the clock was set.
  if (age > -kHookRequestSettles && age < kHookRequestSettles) {
    return failure(EAGAIN, "the request is not complete yet");
  }
  if (text.empty()) return HookRequest{};
  return failure(EINVAL, "malformed request: it is not a JSON object");
}

Result<HookRequest> read_hook_request(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    return system_failure("read the attributes of", path, errno == ENOENT ? ENOENT : EIO);
  }
  const auto text = read_whole_file(path);
  if (!text) {
    const int error = text.error().errno_value;
    return failure(error == ENOENT ? ENOENT : EIO, text.error().message);
  }
  const int64_t changed_ns = facts.st_mtim.tv_sec * int64_t{1'000'000'000} + facts.st_mtim.tv_nsec;
  return parse_hook_request(*text, std::chrono::nanoseconds(realtime_ns() - changed_ns));
}

}  // namespace ppmr
