// The one result type of ppmr: a value, or an Error that says what was tried, on what, and why it
// failed. Peers, disks, the kernel and the command line produce Errors; our own bugs assert.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace ppmr {

struct Error {
  int errno_value = EIO;  // what a FUSE caller gets, see errno(3)
  std::string message;    // operation, object and reason, for people
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

// The failure of a system call: "open /tmp/x: Permission denied".
inline tl::unexpected<Error> system_failure(std::string_view operation, std::string_view object,
                                            int errno_value = errno) {
  std::string message(operation);
  if (!object.empty()) message.append(" ").append(object);
  message.append(": ").append(std::strerror(errno_value));
  return failure(errno_value, std::move(message));
}

}  // namespace ppmr
