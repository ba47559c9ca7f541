// Parses JSON messages from other processes and other nodes.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace ppmr {

// nlohmann::json copies and serialises recursively, so deeply nested text would exhaust the stack.
// No message of ppmr is nested deeper than this limit.
inline constexpr int kJsonDepthMax = 16;

// Returns false if `value` is a number that does not fit into every integer type of at least 32
// bits. nlohmann::json converts a number with a fraction, with an exponent or with too many digits
// to an integer without a check, which is undefined behaviour for a value that does not fit. In
// messages of ppmr such numbers are durations and rates.
inline bool fits_integers(const nlohmann::json& value) {
  if (!value.is_number_float()) return true;
  const double number = value.get<double>();
  return number > -1 && number < 2147483648.0;
}

// Parses `text`. The result is_discarded() if the text is not JSON, is nested too deep, or has a
// number that does not fit into an integer.
inline nlohmann::json parse_json(std::string_view text) {
  using Event = nlohmann::json::parse_event_t;
  const auto check = [](int depth, Event event, nlohmann::json& value) {
    const bool begins = event == Event::array_start || event == Event::object_start;
    if (begins && depth >= kJsonDepthMax) throw std::length_error("too deep");
    if (event == Event::value && !fits_integers(value)) throw std::length_error("too large");
    return true;
  };
  try {
    return nlohmann::json::parse(text, check, /*allow_exceptions=*/false);
  } catch (const std::length_error&) {
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
}

}  // namespace ppmr
