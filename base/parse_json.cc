#include "base/parse_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ppmr {
namespace {

// nlohmann::json stores a number with a fraction, an exponent or too many digits as a double. It
// converts the double to an integer without a check, which is undefined if the value does not fit.
// So parse_json() accepts only values that fit into every integer type of at least 32 bits. In
// messages of ppmr, such numbers are durations and rates.
bool fits_integers(const nlohmann::json& value) {
  if (!value.is_number_float()) return true;
  const double number = value.get<double>();
  return number > -1 && number < 2147483648.0;
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
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
