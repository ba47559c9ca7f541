// CRIU's filter rules that a move leaves at its source.
//
// When CRIU dumps a TCP connection, its rules drop the packets of the connection (network_lock.h).
// After a move these rules stay. Without them this node's kernel, which no longer has the socket,
// would answer the peer with a reset, and so end the connection that goes on at the target. The
// rules are needed as long as this node has the address of the connection. After that they only
// harm: they block a later connection with the same ends.
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
  std::string table = {};  // table of nftables; empty: the lock is in iptables
};
// Returns "10.0.0.1:80 - 10.0.0.2:3345".
std::string text_of(const LockedConnection& locked);

// Returns the connections that CRIU's rules in the output of `iptables -S` or `ip6tables -S` lock,
// each once. Ignores all other rules. Pure.
std::vector<LockedConnection> parse_locks(std::string_view rules);
// Parses an element of a set in one of CRIU's tables of nftables. Errors: EPROTO. Pure.
Result<LockedConnection> parse_nft_element(const std::string& element, const std::string& table);

// Returns whether the lock is no longer needed: this node does not have the local address; or both
// ends are here, and no socket has them. `addresses`: the addresses of this node. Pure.
bool is_unneeded(const LockedConnection& locked, const std::set<std::string>& addresses,
                 const std::vector<InternetSocket>& sockets);

// Returns the connections that rules of iptables or nftables lock. Both may be missing on this
// node. Errors: those of nftables.
Result<std::vector<LockedConnection>> read_locks();

// Removes the locks that are no longer needed. Returns the locks that stay. Errors: those of
// run_command(), of nftables, and of reading the node's addresses and sockets.
Result<std::vector<LockedConnection>> remove_unneeded_locks();

}  // namespace ppmr
