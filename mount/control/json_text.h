// JSON as one line of text, whatever bytes are in its strings.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ppmr {

// Names of processes and files may be any bytes (the kernel itself cuts a process's name at 15),
// and json::dump() throws at what is no UTF-8: such bytes are replaced by U+FFFD.
inline std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ppmr
