// Serialises JSON as one line of text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ppmr {

// Replaces invalid UTF-8 by U+FFFD, where json::dump() would throw. Names of processes and files
// can hold any bytes; the kernel may cut a process's name (15 bytes) in the middle of a character.
std::string json_text(const nlohmann::json& json);

}  // namespace ppmr
