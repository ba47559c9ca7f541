// What the kernel replies to one request to nftables, through netlink. No system calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Threads: one at a time.
class NftReplies {
 public:
  // Adds what one recv(2) has returned. Errors: those of the kernel, also those that end a dump;
  // EPROTO for a malformed message.
  Status add(std::string_view datagram);

  // Whether the kernel has acknowledged the request, or ended the dump.
  bool is_complete() const { return is_complete_; }
  // Whether the tables have changed during the dump. The messages may then lack some objects, so
  // the caller must ask again.
  bool is_interrupted() const { return is_interrupted_; }
  // The messages, without their headers.
  const std::vector<std::string>& messages() const { return messages_; }

 private:
  bool is_complete_ = false;
  bool is_interrupted_ = false;
  std::vector<std::string> messages_;
};

}  // namespace ppmr
