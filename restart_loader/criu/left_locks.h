// CRIU's filter rules that a move leaves at its source.
//
// When CRIU dumps a TCP connection it keeps packets away from it (network_lock.h). After a move
// these rules stay: without them this node's kernel would answer the peer with a reset, because it
// no longer has the socket, and so end the connection that goes on at the target. They are needed
// as long as this node has the address of the connection. Then they only harm, a later connection
// with the same ends.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "processes/connections_in_repair.h"
#include "processes/sockets.h"

namespace ppmr {

// A connection of the calling thread's network namespace that CRIU's rules lock.
struct LockedConnection {
  ConnectionEnd local;
  ConnectionEnd remote;
  std::string table = {};  // of nftables; empty: rules of iptables
};
// Returns "10.0.0.1:80 - 10.0.0.2:3345".
std::string text_of(const LockedConnection& locked);

// Returns the connections that CRIU's rules in the output of `iptables -S` or `ip6tables -S` lock,
// each once. Ignores all other rules. Pure.
std::vector<LockedConnection> parse_locks(std::string_view rules);
// The element of a set in one of CRIU's tables. Errors: EPROTO. Pure.
Result<LockedConnection> parse_nft_element(const std::string& element, const std::string& table);

// Whether nothing needs the lock any more: this node does not have the local address; or both ends
// are here, and no socket has them. `addresses`: those of this node. Pure.
bool is_unneeded(const LockedConnection& locked, const std::set<std::string>& addresses,
                 const std::vector<InternetSocket>& sockets);

// Errors: those of iptables and nftables, which may be missing.
Result<std::vector<LockedConnection>> read_locks();

// Removes the locks that nothing needs. Returns those that stay. Errors: as above.
Result<std::vector<LockedConnection>> remove_unneeded_locks();

}  // namespace ppmr
