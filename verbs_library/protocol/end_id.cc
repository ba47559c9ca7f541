#include "verbs_library/protocol/end_id.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>

namespace ppmr::verbs {

std::string file_name_of(const EndId& end) {
  std::string name;
  char digits[12];
  for (const uint8_t byte : end.gid) {
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    name += digits;
  }
  std::snprintf(digits, sizeof(digits), "-%x", end.qpn);
  return name + digits;
}

bool is_mapped_ipv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

std::string address_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_mapped_ipv4(gid)) {
    inet_ntop(AF_INET, gid.data() + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  }
  return text;
}

}  // namespace ppmr::verbs
