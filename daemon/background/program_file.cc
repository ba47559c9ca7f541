#include "daemon/background/program_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/version.h"

namespace ppmr {

using nlohmann::json;

json describe_program() {
  std::error_code error;
  // The kernel adds " (deleted)" if the file was removed or replaced (proc(5)). A package replaces
  // each file by a new one.
  const std::string file = std::filesystem::read_symlink("/proc/self/exe", error);
  return {{"version", kVersion}, {"commit", kCommit}, {"replaced", file.ends_with(" (deleted)")}};
}

std::string describe_old_program(const json& status, const std::string& version) {
  const auto found = status.find("program");
  if (found == status.end() || !found->is_object()) {
    return fmt::format("runs a ppmr that is older than this one ({})", version);
  }
  const std::string runs = found->value("version", "?");
  if (runs != version) return fmt::format("runs ppmr {}, and this is ppmr {}", runs, version);
  if (found->value("replaced", false)) {
    return "runs a program whose file was replaced or removed since it started";
  }
  return "";
}

}  // namespace ppmr
