// For tests: what must hold for each kind of request in a variant (json_message.h).
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_message.h"
#include "base/json_text.h"
#include "base/parse_json.h"

namespace ppmr {
namespace request_checks {

using nlohmann::json;

struct Field {
  std::string name;
  bool may_lack = false;
  json wrong;  // a value of another type; null: a value of any type is right
};

template <typename T>
json of_another_type() {
  if constexpr (std::is_same_v<T, json> || std::is_same_v<T, std::optional<json>>) return nullptr;
  if constexpr (std::is_convertible_v<std::string, T>) return 7;
  return "?";
}

// Lists the fields of a request, and gives each a value of its own. Fields of types that it does
// not know keep their values.
struct Filler {
  std::vector<Field>& fields;

  template <typename T>
  void operator()(const char* name, T& value) const {
    fields.push_back({name, false, of_another_type<T>()});
    fill(name, value);
  }
  template <typename T>
  void may_lack(const char* name, T& value) const {
    fields.push_back({name, true, of_another_type<T>()});
    fill(name, value);
  }

  template <typename T>
  void fill(const char* name, T& value) const {
    if constexpr (json_message::HasFields<T>) {
      std::vector<Field> inner;
      value.fields(Filler{inner});
    } else if constexpr (std::is_same_v<T, json>) {
      value = json{{"of", name}};
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = name;
    } else if constexpr (std::is_same_v<T, bool>) {
      value = !value;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::chrono::milliseconds>) {
      value = static_cast<T>(fields.size());
    } else if constexpr (requires { value.has_value(); }) {
      fill(name, value.emplace());
    } else if constexpr (requires { value.emplace_back(); }) {
      fill(name, value.emplace_back());
    }
  }
};

// Returns the message as the other end parses it.
inline json on_arrival(const json& message) { return parse_json(json_text(message)); }

inline json random_value(std::mt19937& random) {
  const json values = {nullptr, true, -1, 7, uint64_t{1} << 63, 0.5, "", "\xff\x01", "7"};
  const size_t chosen = random() % (values.size() + 2);
  if (chosen < values.size()) return values[chosen];
  if (chosen == values.size()) return json::array({random_value(random)});
  return json::object({{"id", random_value(random)}});
}

// Returns the message with fields, at any depth, that are missing or have other values.
inline json damaged(json message, std::mt19937& random) {
  if (!message.is_structured() || message.empty()) return message;
  for (json& value : message) {
    value = random() % 4 == 0 ? random_value(random) : damaged(value, random);
  }
  if (message.is_object() && random() % 4 == 0) {
    message.erase(std::next(message.begin(), static_cast<int>(random() % message.size())));
  }
  return message;
}

template <typename Any, size_t kIndex>
void check_kind() {
  using Request = std::variant_alternative_t<kIndex, Any>;
  const std::string kind = Request::kName;
  Request request;
  std::vector<Field> fields;
  request.fields(Filler{fields});
  const json sent = on_arrival(to_request(request));
  const auto read = read_request<Any>(sent);
  ASSERT_TRUE(read) << kind << ": " << read.error().message;
  ASSERT_EQ(read->index(), kIndex) << kind << " has the name of another kind";
  EXPECT_EQ(to_request(std::get<kIndex>(*read)), sent);

  const auto why = [](const json& message) {
    const auto refused = read_request<Any>(message);
    return refused ? std::string() : refused.error().message;
  };
  for (const Field& field : fields) {
    json without = sent;
    without.erase(field.name);
    const std::string refusal = "malformed request '" + kind + "': " + field.name;
    EXPECT_EQ(why(without), field.may_lack ? "" : refusal + " is missing");
    if (field.wrong.is_null()) continue;
    json mistyped = sent;
    mistyped[field.name] = field.wrong;
    EXPECT_TRUE(why(mistyped).starts_with(refusal + ": ")) << refusal << " is " << field.wrong;
  }

  std::mt19937 random(kIndex);
  for (int i = 0; i < 300; ++i) {
    json message = on_arrival(damaged(sent, random));
    EXPECT_NO_THROW((void)read_request<Any>(message)) << message;
    message["op"] = kind;
    EXPECT_NO_THROW((void)read_request<Any>(message)) << message;
  }
}

}  // namespace request_checks

// Checks for each kind that it comes back as itself; that the refusal of a request names the field
// that is missing or has the wrong type; and that a damaged request leads to no exception.
template <typename Any>
void check_each_kind() {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (request_checks::check_kind<Any, kIndex>(), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Any>>());
}

}  // namespace ppmr
