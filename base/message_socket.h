// Sends and receives messages with file descriptors over Unix sockets. Processes of ppmr exchange
// structs of fixed size over a socket of packets (SOCK_SEQPACKET), and messages with CRIU.
//
// The receiver decides how many descriptors it takes. From its arrival on, each descriptor is in a
// UniqueFd and close-on-exec. If the receiver refuses a message, it closes the message's
// descriptors.
//
// Threads: any, if at most one thread at a time sends on a socket, and at most one receives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// The largest number of file descriptors that the kernel passes with one message (SCM_MAX_FD).
inline constexpr size_t kDescriptorsMax = 253;

inline tl::unexpected<Error> has_ended(std::string_view peer) {
  return failure(EPIPE, std::string(peer) + " has ended (was it killed?)");
}

// Calls recvmsg(2) with `flags`, and repeats the call after EINTR. Returns the number of bytes; 0
// means that the peer has closed its end. Appends the received descriptors to `descriptors`. If
// `descriptors_max` is 0, the kernel closes all received descriptors. `peer` names the sender in
// errors. Errors: EMFILE if more than `descriptors_max` (at most kDescriptorsMax) came, or if this
// process cannot have so many; EMSGSIZE if the packet is longer than `bytes`; those of recvmsg(2).
Result<size_t> receive_bytes(int socket, std::span<std::byte> bytes, size_t descriptors_max,
                             std::vector<UniqueFd>& descriptors, std::string_view peer,
                             int flags = 0);

// Calls sendmsg(2) with `flags` and MSG_NOSIGNAL, and repeats the call after EINTR. Returns how
// many bytes the kernel took. All descriptors (at most kDescriptorsMax) travel with the first byte.
// Errors: those of sendmsg(2).
Result<size_t> send_bytes(int socket, std::span<const std::byte> bytes,
                          std::span<const UniqueFd> descriptors, std::string_view peer,
                          int flags = 0);

// Sends `message` as one packet, with up to kDescriptorsMax descriptors. Errors: EPIPE if the peer
// has closed its end; those of sendmsg(2).
template <typename Message>
Status send_message(int socket, const Message& message, std::string_view peer,
                    std::span<const UniqueFd> descriptors = {}, int flags = 0) {
  static_assert(std::is_trivially_copyable_v<Message>);
  const auto sent =
      send_bytes(socket, std::as_bytes(std::span(&message, 1)), descriptors, peer, flags);
  if (sent) return {};
  return sent.error().errno_value == EPIPE ? has_ended(peer) : failure(sent.error());
}

// Receives one packet, which must be as long as a Message. Appends up to `descriptors_max`
// descriptors to `descriptors`, which may be null only if `descriptors_max` is 0. Errors: EPIPE if
// the peer has closed its end; EPROTO if the packet is shorter or longer (the caller can then
// receive the next packet); those of receive_bytes().
template <typename Message>
Result<Message> receive_message(int socket, std::string_view peer, size_t descriptors_max = 0,
                                std::vector<UniqueFd>* descriptors = nullptr) {
  static_assert(std::is_trivially_copyable_v<Message>);
  Message message;
  std::vector<UniqueFd> none;
  const auto received =
      receive_bytes(socket, std::as_writable_bytes(std::span(&message, 1)), descriptors_max,
                    descriptors != nullptr ? *descriptors : none, peer);
  const int errno_value = received ? 0 : received.error().errno_value;
  // ECONNRESET means that the peer ended before it read all messages.
  if ((received && *received == 0) || errno_value == ECONNRESET) {
    return has_ended(peer);
  }
  if ((received && *received != sizeof(message)) || errno_value == EMSGSIZE) {
    return failure(EPROTO, std::string(peer) + " sent a message of a wrong length");
  }
  if (!received) return failure(received.error());
  return message;
}

// An outcome in a message of fixed size: success, or an error with at most kTextBytesMax bytes of
// its message.
template <size_t kTextBytesMax>
struct StatusMessage {
  int32_t errno_value = 0;  // 0: success
  uint32_t text_bytes = 0;
  char text[kTextBytesMax] = {};

  void set(const Error& error) {
    errno_value = error.errno_value > 0 ? error.errno_value : EIO;
    text_bytes = static_cast<uint32_t>(std::min(error.message.size(), kTextBytesMax));
    std::copy_n(error.message.begin(), text_bytes, text);
  }

  // Errors: the one that was set; EPROTO if the sender, `peer`, has set a wrong length.
  Status status(std::string_view peer) const {
    if (text_bytes > kTextBytesMax) {
      return failure(EPROTO, std::string(peer) + " sent a malformed reply");
    }
    if (errno_value == 0) return {};
    return failure(errno_value, std::string(text, text_bytes));
  }
};

}  // namespace ppmr
