// Encodes and decodes the fields of a message. All integers are little-endian.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace ppmr::wire {

// Appends fields to a fixed buffer. The caller must limit the length of its strings, so an overrun
// is a bug of the caller.
class Writer {
 public:
  explicit Writer(std::span<std::byte> buffer) : buffer_(buffer) {}

  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      (*this)(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_integral_v<T>) {
      for (size_t i = 0; i < sizeof(T); ++i) {
        byte(static_cast<std::byte>((static_cast<std::make_unsigned_t<T>>(value) >> (8 * i)) &
                                    0xff));
      }
    } else if constexpr (std::is_same_v<T, std::string>) {
      (*this)(static_cast<uint32_t>(value.size()));
      for (char c : value) byte(static_cast<std::byte>(c));
    } else if constexpr (requires { value.begin(); }) {
      for (auto c : value) byte(static_cast<std::byte>(c));
    } else {
      const_cast<T&>(value).fields(*this);
    }
  }
  size_t written_bytes() const { return position_; }
  bool overrun() const { return overrun_; }

 private:
  void byte(std::byte value) {
    if (position_ < buffer_.size()) {
      buffer_[position_++] = value;
    } else {
      overrun_ = true;
    }
  }
  std::span<std::byte> buffer_;
  size_t position_ = 0;
  bool overrun_ = false;
};

// Decodes fields from untrusted bytes. ok() becomes false instead of reading past the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> raw{};
      (*this)(raw);
      value = static_cast<T>(raw);
    } else if constexpr (std::is_integral_v<T>) {
      std::make_unsigned_t<T> raw = 0;
      for (size_t i = 0; i < sizeof(T); ++i) {
        raw |= static_cast<std::make_unsigned_t<T>>(
            static_cast<std::make_unsigned_t<T>>(std::to_integer<uint8_t>(byte())) << (8 * i));
      }
      value = static_cast<T>(raw);
    } else if constexpr (std::is_same_v<T, std::string>) {
      uint32_t length = 0;
      (*this)(length);
      if (length > rest_.size()) {
        ok_ = false;
        return;
      }
      value.assign(reinterpret_cast<const char*>(rest_.data()), length);
      rest_ = rest_.subspan(length);
    } else if constexpr (requires { value.begin(); }) {
      for (auto& c : value) c = static_cast<std::decay_t<decltype(c)>>(byte());
    } else {
      value.fields(*this);
    }
  }
  bool ok() const { return ok_; }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::byte byte() {
    if (rest_.empty()) {
      ok_ = false;
      return std::byte{0};
    }
    const std::byte value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

template <typename Message>
std::vector<std::byte> encode(const Message& message, size_t size_max_bytes = 16 << 10) {
  std::vector<std::byte> bytes(size_max_bytes);
  Writer writer(bytes);
  writer(message);
  bytes.resize(writer.written_bytes());
  return bytes;
}

// Decodes the message in `body`. `rest` receives the bytes after the fields; if `rest` is null,
// there must be no such bytes. Errors: EPROTO when the body is too short or too long.
template <typename Message>
Result<Message> decode(std::span<const std::byte> body,
                       std::span<const std::byte>* rest = nullptr) {
  Message message;
  Reader reader(body);
  reader(message);
  if (!reader.ok()) return failure(EPROTO, "malformed message: too short");
  if (rest != nullptr) {
    *rest = reader.rest();
  } else if (!reader.rest().empty()) {
    return failure(EPROTO, "malformed message: too long");
  }
  return message;
}

}  // namespace ppmr::wire
