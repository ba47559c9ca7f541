// Converts structs to messages in JSON and back, as rdma_stream/wire does for binary messages. A
// struct names its fields once, in fields(), and both ends use that function.
//
//   struct Wait {
//     static constexpr const char* kName = "wait";
//     std::string checkpoint;
//     std::optional<std::chrono::milliseconds> timeout;
//     template <typename F>
//     void fields(F&& field) {
//       field("checkpoint", checkpoint);          // must be there
//       field.may_lack("timeout_ms", timeout);    // if missing, keeps its default value
//     }
//   };
//
// A request is a JSON object with "op": kName and the fields of the struct. Fields that a struct
// does not name are ignored, so that a newer sender can add some. A field may be a number, a
// string, an optional, a time in milliseconds, a struct with fields(), or a vector or map of those.
// A number with a fraction must not be negative: parse_json() refuses a message with a number that
// fits no unsigned integer. Leave out an unknown number (an empty optional); do not send -1.
#pragma once

#include <cerrno>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

namespace ppmr {
namespace json_message {

struct NoField {
  template <typename T>
  void operator()(const char*, T&) const {}
  template <typename T>
  void may_lack(const char*, T&) const {}
};

template <typename T>
concept HasFields = requires(T& message) {
  message.fields(NoField{});
};

template <typename T>
struct Value {
  static nlohmann::json encode(const T& value) {
    if constexpr (HasFields<T>) {
      T copy = value;
      return encode_fields(copy);
    } else {
      return value;
    }
  }
  static void decode(const nlohmann::json& json, T& value) {
    if constexpr (HasFields<T>) {
      if (!json.is_object()) throw std::invalid_argument("it is not an object");
      decode_fields(json, value);
    } else {
      json.get_to(value);
    }
  }
  static nlohmann::json encode_fields(T& message);
  static void decode_fields(const nlohmann::json& json, T& message);
};

template <>
struct Value<std::chrono::milliseconds> {
  static nlohmann::json encode(std::chrono::milliseconds value) { return value.count(); }
  static void decode(const nlohmann::json& json, std::chrono::milliseconds& value) {
    value = std::chrono::milliseconds(json.get<int64_t>());
  }
};

template <typename T>
struct Value<std::optional<T>> {
  static nlohmann::json encode(const std::optional<T>& value) { return Value<T>::encode(*value); }
  static void decode(const nlohmann::json& json, std::optional<T>& value) {
    Value<T>::decode(json, value.emplace());
  }
};

template <typename T>
struct Value<std::vector<T>> {
  static nlohmann::json encode(const std::vector<T>& values) {
    auto json = nlohmann::json::array();
    for (const T& value : values) json.push_back(Value<T>::encode(value));
    return json;
  }
  static void decode(const nlohmann::json& json, std::vector<T>& values) {
    if (!json.is_array()) throw std::invalid_argument("it is not an array");
    values.clear();
    for (const nlohmann::json& item : json) Value<T>::decode(item, values.emplace_back());
  }
};

template <typename T>
bool is_absent(const T&) {
  return false;
}
template <typename T>
bool is_absent(const std::optional<T>& value) {
  return !value;
}

struct Encoder {
  nlohmann::json& json;
  template <typename T>
  void operator()(const char* name, T& value) const {
    json[name] = Value<T>::encode(value);
  }
  template <typename T>
  void may_lack(const char* name, T& value) const {
    if (!is_absent(value)) json[name] = Value<T>::encode(value);
  }
};

struct Decoder {
  const nlohmann::json& json;
  template <typename T>
  void operator()(const char* name, T& value) const {
    if (!json.contains(name)) throw std::invalid_argument(std::string(name) + " is missing");
    may_lack(name, value);
  }
  template <typename T>
  void may_lack(const char* name, T& value) const {
    const auto found = json.find(name);
    if (found == json.end()) return;
    try {
      Value<T>::decode(*found, value);
    } catch (const std::exception& error) {
      throw std::invalid_argument(std::string(name) + ": " + error.what());
    }
  }
};

template <typename T>
nlohmann::json Value<T>::encode_fields(T& message) {
  nlohmann::json json = nlohmann::json::object();
  message.fields(Encoder{json});
  return json;
}

template <typename T>
void Value<T>::decode_fields(const nlohmann::json& json, T& message) {
  message.fields(Decoder{json});
}

}  // namespace json_message

// Returns the request as the JSON that read_request() reads.
template <typename Request>
nlohmann::json to_request(const Request& request) requires json_message::HasFields<Request> {
  nlohmann::json json = json_message::Value<Request>::encode(request);
  json["op"] = Request::kName;
  return json;
}

// Reads the fields of a message that is not a request. Returns nullopt if a field is missing or has
// the wrong type.
template <typename T>
std::optional<T> read_fields(const nlohmann::json& json) {
  T message;
  try {
    json_message::Value<T>::decode(json, message);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return message;
}

// Reads a request of one kind. Errors: EINVAL if a field is missing or has the wrong type.
template <typename Request>
Result<Request> read_one(const nlohmann::json& json) {
  Request request;
  try {
    json_message::Value<Request>::decode(json, request);
  } catch (const std::exception& error) {
    return failure(EINVAL,
                   std::string("malformed request '") + Request::kName + "': " + error.what());
  }
  return request;
}

namespace json_message {

template <typename Requests>
struct Reader;

template <typename... Requests>
struct Reader<std::variant<Requests...>> {
  static Result<std::variant<Requests...>> read(const nlohmann::json& json) {
    const auto op = json.is_object() ? json.find("op") : json.end();
    if (op == json.end() || !op->is_string()) {
      return failure(EINVAL, "malformed request: op is missing");
    }
    const auto& name = op->template get_ref<const std::string&>();
    Result<std::variant<Requests...>> request =
        failure(EOPNOTSUPP, "unknown request '" + name +
                                "' (install the same ppmr on both nodes, and restart its daemons)");
    const auto try_one = [&]<typename Request>() {
      if (name != Request::kName) return;
      auto read = read_one<Request>(json);
      request = read ? Result<std::variant<Requests...>>(std::move(*read)) : failure(read.error());
    };
    (try_one.template operator()<Requests>(), ...);
    return request;
  }
};

}  // namespace json_message

// Reads a request of one of the types in the variant `Requests`. Errors: EOPNOTSUPP if `op` names
// none of them; EINVAL if `op` or a field is missing, or a field has the wrong type.
template <typename Requests>
Result<Requests> read_request(const nlohmann::json& json) {
  return json_message::Reader<Requests>::read(json);
}

// Combines lambdas, one for each type of request, into one visitor for std::visit(). If a type has
// no lambda, the visit does not compile.
template <typename... Handlers>
struct EachKind : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
EachKind(Handlers...) -> EachKind<Handlers...>;

}  // namespace ppmr
