// The name of a queue pair as programs know it: the GID and the queue pair number that the program
// got first. Both stay the same for the life of the queue pair, even if its process moves.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>

namespace ppmr::verbs {

using Gid = std::array<uint8_t, 16>;

struct EndId {
  Gid gid = {};
  uint32_t qpn = 0;

  auto operator<=>(const EndId&) const = default;
};

// Returns the name of the end's file in the directory: the GID as 32 hexadecimal digits, "-", and
// the queue pair number in hexadecimal.
std::string file_name_of(const EndId& end);

// Returns the address in a GID as text: the IPv4 address if the GID is IPv4-mapped, or else the
// IPv6 address.
std::string address_of(const Gid& gid);

bool is_mapped_ipv4(const Gid& gid);
bool is_link_local(const Gid& gid);

}  // namespace ppmr::verbs
