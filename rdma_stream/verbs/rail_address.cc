#include <arpa/inet.h>

#include <algorithm>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

bool RailAddress::is_ipv4() const {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), ip.begin());
}

bool RailAddress::same_network(const std::array<uint8_t, 16>& other) const {
  for (unsigned bit = 0; bit < prefix_bits; ++bit) {
    const unsigned mask = 0x80u >> (bit % 8);
    if ((ip[bit / 8] & mask) != (other[bit / 8] & mask)) return false;
  }
  return true;
}

std::string RailAddress::ip_text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (is_ipv4()) {
    ::inet_ntop(AF_INET, ip.data() + kMappedPrefix.size(), text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, ip.data(), text, sizeof text);
  }
  return text;
}

std::string RailAddress::text() const {
  return (is_ipv4() ? ip_text() : "[" + ip_text() + "]") + ":" + std::to_string(port);
}

}  // namespace ppmr
