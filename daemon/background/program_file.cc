#include "daemon/background/program_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/own_path.h"
#include "base/version.h"

namespace ppmr {

using nlohmann::json;

json describe_program() {
  const auto path = own_path();
  const bool is_replaced = !path && path.error().errno_value == ESTALE;
  return {{"version", kVersion}, {"commit", kCommit}, {"replaced", is_replaced}};
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
