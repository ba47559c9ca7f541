// The filter rules with which CRIU keeps packets away from a tree while CRIU holds the tree. CRIU
// removes them before it lets the tree go. A CRIU that was killed leaves them, and then no packet
// of these connections passes any more.
//
//   a tree in the network namespace of CRIU   two rules for each connection: of iptables, or
//                                             elements in a table of nftables for this dump
//   a tree in its own network namespace       rules for all packets there: a chain of iptables, or
//                                             a table of nftables
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "processes/connections_in_repair.h"

namespace ppmr {

// Returns commands, programs with their arguments, that remove CRIU's rules for this connection.
// Each command removes a rule in `rules`, the output of `iptables -S`. Pure.
std::vector<std::vector<std::string>> commands_to_unlock(const TcpConnection& connection,
                                                         const std::string& rules);

// Returns the element for the connection's incoming packets in the set of CRIU's table. Pure.
std::string nft_element_of(const TcpConnection& connection);

// Removes the rules for these connections, in the network namespace of the calling thread. A
// missing rule is no error. `connections`: all connections of a tree, because CRIU locks a
// connection before it puts it into repair mode. `work_directory`: the work directory of the killed
// CRIU. Waits first for the end of a command that this CRIU has started. Errors: those of nftables;
// ETIMEDOUT.
Status unlock_connections(const std::vector<TcpConnection>& connections,
                          const std::string& work_directory);

// Removes the rules for all packets in the network namespace of this process. Errors: those of
// unlock_connections(); ESRCH.
Status unlock_namespace_of(pid_t pid, const std::string& work_directory);

}  // namespace ppmr
