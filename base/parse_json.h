// Parses JSON messages from other processes and other nodes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace ppmr {

// nlohmann::json copies and serialises recursively, so deeply nested text would exhaust the stack.
// No message of ppmr is nested deeper than this limit.
inline constexpr int kJsonDepthMax = 16;

// Returns the parsed value. It is_discarded() if the text is not JSON, is nested too deep, or has a
// number that does not fit into every integer type of at least 32 bits.
nlohmann::json parse_json(std::string_view text);

}  // namespace ppmr
