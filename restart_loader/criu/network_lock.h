// The filter rules with which CRIU keeps packets away from a tree while it holds it. CRIU removes
// them before it lets the tree go. A CRIU that was killed leaves them, and then no packet of these
// connections passes any more.
//
//   a tree in the network namespace of CRIU   two rules for each connection: of iptables, or
//                                             elements in a table of nftables for this dump
//   a tree in one of its own                  rules for all packets there: a chain of iptables, or
//                                             a table of nftables
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "processes/connections_in_repair.h"

namespace ppmr {

// The programs with their arguments that remove those of CRIU's rules for this connection that are
// in `rules`, which is what `iptables -S` prints. Pure.
std::vector<std::vector<std::string>> commands_to_unlock(const TcpConnection& connection,
                                                         const std::string& rules);

// The element of the connection's incoming packets in the set of CRIU's table. Pure.
std::string nft_element_of(const TcpConnection& connection);

// Removes the rules for these connections, in the network namespace of the calling thread. Rules
// that are not there are no error. CRIU locks a connection before it is in repair mode, so these
// are all of a tree. `work_directory`: of the CRIU that was killed; a command that it has started
// there is awaited first. Errors: of nftables; ETIMEDOUT.
Status unlock_connections(const std::vector<TcpConnection>& connections,
                          const std::string& work_directory);

// Removes the rules for all packets in the network namespace of this process. Errors: as above;
// ESRCH.
Status unlock_namespace_of(pid_t pid, const std::string& work_directory);

}  // namespace ppmr
