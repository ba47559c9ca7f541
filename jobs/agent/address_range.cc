#include "jobs/agent/address_range.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <charconv>
#include <memory>
#include <optional>

namespace ppmr {
namespace {

constexpr unsigned kPrefixBitsMin = 8;
constexpr unsigned kPrefixBitsMax = 29;

std::optional<uint32_t> parse_address(const std::string& text) {
  in_addr address;
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

}  // namespace

std::string format_address(uint32_t address) {
  const in_addr network{htonl(address)};
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &network, text, sizeof(text));
}

Result<AddressRange> parse_address_range(const std::string& text) {
  const size_t slash = text.find('/');
  const auto base = parse_address(text.substr(0, slash));
  unsigned bits = 0;
  if (slash != std::string::npos) {
    std::from_chars(text.data() + slash + 1, text.data() + text.size(), bits);
  }
  if (!base || bits < kPrefixBitsMin || bits > kPrefixBitsMax) {
    return failure(EINVAL,
                   "'" + text + "' is not a range of addresses such as 10.3.7.0/24 (/8 to /29)");
  }
  const uint32_t hosts = (uint32_t{1} << (32 - bits)) - 1;
  return AddressRange{(*base & ~hosts) + 1, (*base | hosts) - 1};
}

Result<AddressRange> default_address_range(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(nullptr, freeaddrinfo);
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) == 0) owner.reset(found);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const uint32_t address =
        ntohl(reinterpret_cast<const sockaddr_in*>(each->ai_addr)->sin_addr.s_addr);
    if (address >> 24 == 127) continue;
    const uint32_t base = (uint32_t{10} << 24) | (address & 0xffff) << 8;
    return AddressRange{base + 1, base + 254};
  }
  return failure(EADDRNOTAVAIL, "the name of this host, " + host +
                                    ", has no address but loopback: choose the addresses of its "
                                    "jobs with --addresses");
}

void AddressPool::take(const std::string& address) {
  const auto number = parse_address(address);
  // The address may be outside of this range: an earlier agent may have had another range, or
  // another home may have assigned the address.
  if (number && *number >= range_.first && *number <= range_.last) taken_.insert(*number);
}

bool AddressPool::is_taken(const std::string& address) const {
  const auto number = parse_address(address);
  return number && taken_.contains(*number);
}

Result<std::string> AddressPool::take_next() {
  for (size_t tried = 0; tried < range_.count(); ++tried) {
    const uint32_t address = next_;
    next_ = next_ == range_.last ? range_.first : next_ + 1;
    if (taken_.insert(address).second) return format_address(address);
  }
  return failure(EADDRNOTAVAIL,
                 "all addresses for jobs of this host are in use: extend --addresses");
}

void AddressPool::give_back(const std::string& address) {
  if (const auto number = parse_address(address)) taken_.erase(*number);
}

}  // namespace ppmr
