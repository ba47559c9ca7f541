#include "restart_loader/criu/nft_replies.h"

#include <linux/netlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace ppmr {
namespace {

// Returns the error at the beginning of the payload, as the kernel writes it: 0 or a negative
// errno.
int error_in(std::string_view payload) {
  int error = 0;
  if (payload.size() >= sizeof(error)) std::memcpy(&error, payload.data(), sizeof(error));
  return error;
}

}  // namespace

Status NftReplies::add(std::string_view datagram) {
  while (datagram.size() >= sizeof(nlmsghdr) && !is_complete_) {
    nlmsghdr header{};
    std::memcpy(&header, datagram.data(), sizeof(header));
    if (header.nlmsg_len < NLMSG_HDRLEN || header.nlmsg_len > datagram.size()) {
      return failure(EPROTO, "nftables: the kernel's reply is incomplete");
    }
    const auto payload = datagram.substr(NLMSG_HDRLEN, header.nlmsg_len - NLMSG_HDRLEN);
    // The kernel marks only the first message after the change.
    is_interrupted_ = is_interrupted_ || (header.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
    if (header.nlmsg_type == NLMSG_DONE || header.nlmsg_type == NLMSG_ERROR) {
      // A dump that fails after its first messages ends with NLMSG_DONE and the error.
      const int error = error_in(payload);
      if (error < 0) return system_failure("send", "a request to nftables", -error);
      is_complete_ = true;
    } else {
      messages_.emplace_back(payload);
    }
    datagram.remove_prefix(std::min<size_t>(NLMSG_ALIGN(header.nlmsg_len), datagram.size()));
  }
  return {};
}

}  // namespace ppmr
