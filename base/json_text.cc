#include "base/json_text.h"

#include <nlohmann/json.hpp>

namespace ppmr {

std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ppmr
