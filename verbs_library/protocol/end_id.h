// One end of a connection as programs know it: the GID and the queue pair number that the program
// was given first. Both stay the same for the life of the queue pair, wherever its process moves.
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

// The name of the end's file in the directory: 32 hexadecimal digits, "-", the number in
// hexadecimal.
std::string file_name_of(const EndId& end);

// The last four bytes of an IPv4 address that is mapped into a GID, as text; else the IPv6 address.
std::string address_of(const Gid& gid);

bool is_mapped_ipv4(const Gid& gid);
bool is_link_local(const Gid& gid);

}  // namespace ppmr::verbs
