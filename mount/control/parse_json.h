// Parses JSON messages from other processes and other nodes.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace ppmr {

// nlohmann::json copies and serialises recursively: text that is nested deep enough would exhaust
// the stack. No message of ppmr is nested deeper than this.
inline constexpr int kJsonDepthMax = 16;

// The result is_discarded() for text that is not JSON or is nested too deep.
inline nlohmann::json parse_json(std::string_view text) {
  using Event = nlohmann::json::parse_event_t;
  const auto limit_depth = [](int depth, Event event, nlohmann::json&) {
    const bool begins = event == Event::array_start || event == Event::object_start;
    if (begins && depth >= kJsonDepthMax) throw std::length_error("too deep");
    return true;
  };
  try {
    return nlohmann::json::parse(text, limit_depth, /*allow_exceptions=*/false);
  } catch (const std::length_error&) {
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
}

}  // namespace ppmr
