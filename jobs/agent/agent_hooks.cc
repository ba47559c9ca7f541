// Requests of other programs, such as a scheduler's health check. A program creates the file
// NAME.request to have this host evacuated, and the agent answers with the file NAME.result. The
// directory is private to root.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/whole_file.h"
#include "jobs/agent/job_agent.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

Status write_result(const std::string& path, const json& result) {
  const std::string unfinished = path + ".new";
  if (!(std::ofstream(unfinished) << json_text(result) << '\n'
                                  << std::flush) ||
      rename(unfinished.c_str(), path.c_str()) != 0) {
    return system_failure("write", path);
  }
  return {};
}

}  // namespace

json JobAgent::answer_hook(const HookRequest& request) {
  return answer_safely([&]() -> json {
    const json answer = evacuate(0, request.to, {});
    return answer.value("evacuation", answer);
  });
}

void JobAgent::serve_hooks() {
  std::error_code error;
  for (const auto& entry : list_directory(hooks_directory()).value_or(DirectoryEntries())) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".request" || !entry.is_regular_file(error)) continue;
    const auto request = read_hook_request(path);
    const int unread = request ? 0 : request.error().errno_value;
    if (unread == ENOENT || unread == EAGAIN) continue;
    if (unread == EIO) {
      spdlog::error("skipped a request for the evacuation of this host: {}",
                    request.error().message);
      continue;
    }
    spdlog::info("{} asks for the evacuation of this host", path.filename().string());
    const json result = request ? answer_hook(*request) : refusal(request.error());
    if (wait({})) return;  // stopped: the next agent serves the request
    // Writes the result before it removes the request. If the agent dies in between, the next agent
    // evacuates an empty host once more.
    if (Status written = write_result(path.replace_extension(".result"), result); !written) {
      spdlog::error("{}", written.error().message);
      continue;
    }
    unlink(path.replace_extension(".request").c_str());
  }
}

}  // namespace ppmr
