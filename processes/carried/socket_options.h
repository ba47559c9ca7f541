// The options of sockets that CRIU forgets. Internal to carried_state.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/carried/multicast_probe.h"

namespace ppmr {

// A multicast group of an interface. The kernel does not list which sockets are its members.
struct MulticastGroup {
  uint32_t interface_index = 0;
  std::string interface;
  std::string address;  // 4 or 16 bytes
};

// Parses /proc/PID/net/igmp and igmp6.
std::vector<MulticastGroup> parse_groups(std::string_view igmp, std::string_view igmp6);

// Returns a copy of the process's descriptor. Errors: those of pidfd_getfd(2).
Result<UniqueFd> take_socket(const UniqueFd& pidfd, int number);

// Reads the options and multicast groups of a socket. `groups`: the groups of the socket's network
// namespace. `multicast`: nullptr if this process is in another network namespace.
void read_socket(int socket, const std::vector<MulticastGroup>& groups, MulticastProbe* multicast,
                 carried::Socket& read);

// Sets the options and joins the groups. An error names the option or group, and the reason.
Status apply_socket(const carried::Socket& wanted, const std::vector<MulticastGroup>& groups,
                    int socket);

// Returns an option's name for messages: "TCP_USER_TIMEOUT".
std::string name_of_option(uint32_t level, uint32_t name);
// Returns whether only a privileged user may set the option, except to 0.
bool needs_privilege(uint32_t level, uint32_t name);
// Returns the names of all options that read_socket() reads.
std::vector<std::string> names_of_options();

}  // namespace ppmr
