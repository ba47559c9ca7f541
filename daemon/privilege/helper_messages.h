// The messages between a data daemon and its privileged helper, over a socket pair
// (SOCK_SEQPACKET): one request, then its reply, both of fixed size. A reply can carry descriptors.
// The helper trusts no request, so a request names no file, program or option.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/message_socket.h"

namespace ppmr {

enum class HelperOperation : uint32_t {
  kMount = 1,            // works only once -> the descriptor of the mount's /dev/fuse
  kUnmount,              // works only once
  kStartAgent,           // text: the peer's name -> the descriptor of the agent's socket
  kCreateSpillFile,      // -> an unnamed file: for reading and writing, and for reading only
  kRemoveControlSocket,  // removes the path; the socket itself stays open
  kOpenAgain,            // number: index of a file, see HelperOptions -> its descriptor
  kIsDying,              // number: a pid -> number: 1 if a signal is ending this process
  // number: index of an address of the target -> a socket that connects to it
  kDial,
  // number: of a kept checkpoint, see kept_files.h -> a descriptor
  kOpenKeptDirectory,  // without a number
  kCreateKept,
  kPublishKept,
  kOpenKept,
  kRemoveKept,
};

struct HelperRequest {
  HelperOperation operation{};
  int32_t number = 0;
  uint32_t text_bytes = 0;
  char text[256] = {};
};

struct HelperReply : StatusMessage<1024> {
  int32_t number = 0;
};

inline constexpr size_t kHelperDescriptorsMax = 2;

}  // namespace ppmr
