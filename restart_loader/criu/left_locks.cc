#include "restart_loader/criu/left_locks.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <sstream>
#include <tuple>

#include "restart_loader/criu/network_lock.h"
#include "restart_loader/criu/nft_tables.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kPatience{10'000};
constexpr const char* kCriuMark = "0xc114";
constexpr const char* kTableStart = "CRIU-";
constexpr size_t kPortBytes = 4;  // in an element: a port in network order, and padding

struct Rule {
  std::string from, to;  // addresses
  uint16_t from_port = 0, to_port = 0;
  bool is_incoming = false;
};

// Returns the bytes of an address; empty: malformed. `text` may end with the length of its prefix.
std::string parse_address(std::string text) {
  text = text.substr(0, text.find('/'));
  std::array<char, sizeof(in6_addr)> bytes{};
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in_addr)};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return {bytes.data(), bytes.size()};
  return {};
}

uint16_t parse_port(const std::string& text) {
  uint16_t port = 0;
  std::from_chars(text.data(), text.data() + text.size(), port);
  return port;
}

auto key_of(const LockedConnection& locked) {
  return std::tie(locked.local.address, locked.local.port, locked.remote.address,
                  locked.remote.port, locked.table);
}

bool has_ends(const InternetSocket& socket, const ConnectionEnd& local,
              const ConnectionEnd& remote) {
  const auto bytes = [](const std::string& text) {
    const std::string address = parse_address(text);
    static const std::string kMapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
    return address.starts_with(kMapped) ? address.substr(kMapped.size()) : address;
  };
  return socket.protocol == "tcp" && socket.local_port == local.port &&
         socket.remote_port == remote.port && bytes(socket.local_address) == local.address &&
         bytes(socket.remote_address) == remote.address;
}

Result<std::set<std::string>> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return system_failure("list", "the addresses of this node");
  std::set<std::string> addresses;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      sockaddr_in address{};
      std::memcpy(&address, one->ifa_addr, sizeof(address));
      addresses.emplace(reinterpret_cast<const char*>(&address.sin_addr), sizeof(in_addr));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      sockaddr_in6 address{};
      std::memcpy(&address, one->ifa_addr, sizeof(address));
      addresses.emplace(reinterpret_cast<const char*>(&address.sin6_addr), sizeof(in6_addr));
    }
  }
  freeifaddrs(list);
  return addresses;
}

// All of 127.0.0.0/8 is this node's, although its interface has one address.
bool is_own(const std::string& address, const std::set<std::string>& addresses) {
  return addresses.contains(address) || (address.size() == sizeof(in_addr) && address[0] == 127);
}

std::string read_rules() {
  std::string rules;
  for (const char* program : {"iptables", "ip6tables"}) {
    // If a program is missing, it has made no rule either.
    const auto listed = run_command({program, "-w", "-t", "filter", "-S"}, kPatience);
    if (listed && listed->succeeded) rules += listed->text;
  }
  return rules;
}

}  // namespace

std::string text_of(const LockedConnection& locked) {
  return text_of(locked.local) + " - " + text_of(locked.remote);
}

std::vector<LockedConnection> parse_locks(std::string_view rules) {
  std::vector<LockedConnection> found;
  std::istringstream lines{std::string(rules)};
  for (std::string line; std::getline(lines, line);) {
    if (line.find(kCriuMark) == std::string::npos || !line.ends_with("-j DROP")) continue;
    std::istringstream words(line);
    std::string option, value;
    Rule rule;
    while (words >> option) {
      if (option == "-A") rule.is_incoming = words >> value && value == "INPUT";
      if (option == "-s" && words >> value) rule.from = parse_address(value);
      if (option == "-d" && words >> value) rule.to = parse_address(value);
      if (option == "--sport" && words >> value) rule.from_port = parse_port(value);
      if (option == "--dport" && words >> value) rule.to_port = parse_port(value);
    }
    if (rule.from.empty() || rule.to.empty() || rule.from_port == 0 || rule.to_port == 0) continue;
    LockedConnection locked{{rule.from, rule.from_port}, {rule.to, rule.to_port}};
    if (rule.is_incoming) std::swap(locked.local, locked.remote);
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const auto& other) {
      return key_of(other) == key_of(locked);
    });
    if (!is_known) found.push_back(std::move(locked));
  }
  return found;
}

Result<LockedConnection> parse_nft_element(const std::string& element, const std::string& table) {
  const size_t address_bytes = element.size() / 2 - std::min(element.size() / 2, kPortBytes);
  if (element.size() % 2 != 0 ||
      (address_bytes != sizeof(in_addr) && address_bytes != sizeof(in6_addr))) {
    return failure(EPROTO, "the table " + table + " of nftables is not one of CRIU");
  }
  const auto end_at = [&](size_t at) {
    uint16_t port = 0;
    std::memcpy(&port, element.data() + at + address_bytes, sizeof(port));
    return ConnectionEnd{element.substr(at, address_bytes), ntohs(port)};
  };
  return LockedConnection{end_at(element.size() / 2), end_at(0), table};
}

bool is_unneeded(const LockedConnection& locked, const std::set<std::string>& addresses,
                 const std::vector<InternetSocket>& sockets) {
  if (!is_own(locked.local.address, addresses)) return true;
  if (!is_own(locked.remote.address, addresses)) return false;
  return std::none_of(sockets.begin(), sockets.end(), [&](const InternetSocket& socket) {
    return has_ends(socket, locked.local, locked.remote) ||
           has_ends(socket, locked.remote, locked.local);
  });
}

Result<std::vector<LockedConnection>> read_locks() {
  std::vector<LockedConnection> found = parse_locks(read_rules());
  const auto tables = list_nft_tables();
  if (!tables) return failure(tables.error());
  for (const std::string& table : *tables) {
    if (!table.starts_with(kTableStart)) continue;
    for (const char* set : {"conns4", "conns6"}) {
      const auto elements = list_nft_set(table, set);
      // Without all elements, a table with a lock that is needed would seem not to be needed.
      if (!elements) return failure(elements.error());
      for (const std::string& element : *elements) {
        auto locked = parse_nft_element(element, table);
        if (locked) found.push_back(std::move(*locked));
      }
    }
  }
  return found;
}

Result<std::vector<LockedConnection>> remove_unneeded_locks() {
  auto found = read_locks();
  if (!found || found->empty()) return found;
  const auto addresses = own_addresses();
  const auto sockets = read_internet_sockets(getpid());
  if (!addresses || !sockets) return failure(addresses ? sockets.error() : addresses.error());
  std::vector<LockedConnection> kept;
  std::set<std::string> kept_tables;
  for (const LockedConnection& locked : *found) {
    if (is_unneeded(locked, *addresses, *sockets)) continue;
    kept.push_back(locked);
    kept_tables.insert(locked.table);
  }
  std::set<std::string> gone_tables;
  const std::string rules = read_rules();
  for (const LockedConnection& locked : *found) {
    if (!is_unneeded(locked, *addresses, *sockets)) continue;
    if (locked.table.empty()) {
      const TcpConnection connection{.local = locked.local, .remote = locked.remote};
      for (const auto& command : commands_to_unlock(connection, rules)) {
        const auto done = run_command(command, kPatience);
        if (!done) return failure(done.error());
      }
    } else if (!kept_tables.contains(locked.table) && gone_tables.insert(locked.table).second) {
      if (Status gone = remove_nft_table(locked.table); !gone) return failure(gone.error());
    }
  }
  return kept;
}

}  // namespace ppmr
