// The only result type of ppmr: a value or an Error. Errors come from peers, disks, the kernel and
// the command line. Assertions check for bugs in ppmr itself.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace ppmr {

struct Error {
  int errno_value = EIO;  // see errno(3); the caller of the mount gets this number
  std::string message;    // operation, object and reason
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> failure(int errno_value, std::string message) {
  return tl::unexpected<Error>(Error{errno_value, std::move(message)});
}

inline tl::unexpected<Error> failure(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

// Returns the error of a system call, with a message such as "open /tmp/x: Permission denied".
inline tl::unexpected<Error> system_failure(std::string_view operation, std::string_view object,
                                            int errno_value = errno) {
  std::string message(operation);
  if (!object.empty()) message.append(" ").append(object);
  message.append(": ").append(std::strerror(errno_value));
  return failure(errno_value, std::move(message));
}

}  // namespace ppmr
