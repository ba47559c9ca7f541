#include "rdma_stream/connection/peer_user.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <vector>

namespace ppmr {
namespace {

constexpr int kListening = 10;  // TCP_LISTEN of include/net/tcp_states.h
constexpr size_t kV4Digits = 8;
constexpr size_t kV6Digits = 32;
constexpr size_t kWordDigits = 8;
constexpr size_t kReadBytes = 64 << 10;
// Positions of the words in a line, see proc_net_tcp in the kernel's documentation.
enum Word : size_t { kLocal = 1, kRemote = 2, kState = 3, kUser = 7, kInode = 9, kWordsMin = 10 };

template <typename Number>
bool read_number(std::string_view text, Number& number, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses "0100007F:1F90", which is 127.0.0.1:8080: 32-bit words as this machine stores them, then
// the port.
bool read_end(std::string_view text, SocketEnd& end) {
  const size_t colon = text.find(':');
  if (colon != kV4Digits && colon != kV6Digits) return false;
  uint32_t words[4] = {0, 0, htonl(0xffff), 0};
  const size_t first = colon == kV4Digits ? 3 : 0;
  for (size_t i = 0; i < colon / kWordDigits; ++i) {
    if (!read_number(text.substr(kWordDigits * i, kWordDigits), words[first + i], 16)) return false;
  }
  std::memcpy(&end.address, words, sizeof(words));
  return read_number(text.substr(colon + 1), end.port, 16);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t space = std::min(line.find(' '), line.size());
    if (space > 0) words.push_back(line.substr(0, space));
    line.remove_prefix(std::min(space + 1, line.size()));
  }
  return words;
}

bool is_same(const in6_addr& left, const in6_addr& right) {
  return std::memcmp(&left, &right, sizeof(left)) == 0;
}

bool is_any(const in6_addr& address) {
  const SocketEnd v6{};
  SocketEnd v4{};
  v4.address.s6_addr[10] = v4.address.s6_addr[11] = 0xff;
  return is_same(address, v6.address) || is_same(address, v4.address);
}

SocketEnd end_of(const sockaddr_storage& address) {
  SocketEnd end;
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    end.address = v6.sin6_addr;
    end.port = ntohs(v6.sin6_port);
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    end.address.s6_addr[10] = end.address.s6_addr[11] = 0xff;
    std::memcpy(&end.address.s6_addr[12], &v4.sin_addr, sizeof(v4.sin_addr));
    end.port = ntohs(v4.sin_port);
  }
  return end;
}

// Parses "127.0.0.1:7440" or "[::1]:7440".
bool parse_end(std::string text, SocketEnd& end) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos ||
      !read_number(std::string_view(text).substr(colon + 1), end.port, 10)) {
    return false;
  }
  text.resize(colon);
  if (text.starts_with('[') && text.ends_with(']')) {
    text = text.substr(1, text.size() - 2);
  } else {
    text.insert(0, "::ffff:");
  }
  return ::inet_pton(AF_INET6, text.c_str(), &end.address) == 1;
}

// Reads the whole table in its current state.
std::string read_table(int fd) {
  std::string text;
  for (;;) {
    const size_t before = text.size();
    text.resize(before + kReadBytes);
    const ssize_t count = ::pread(fd, text.data() + before, kReadBytes, static_cast<off_t>(before));
    if (count < 0 && errno == EINTR) {
      text.resize(before);
      continue;
    }
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count <= 0) return text;
  }
}

}  // namespace

std::optional<uid_t> find_socket_user(std::string_view text, const SocketEnd& local,
                                      const SocketEnd& remote, bool listens) {
  bool is_connected = false;
  std::optional<uid_t> program;
  std::optional<uid_t> listener;
  while (!text.empty()) {
    const size_t newline = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, newline));
    text.remove_prefix(std::min(newline + 1, text.size()));
    SocketEnd here, there;
    int state = 0;
    uid_t user = 0;
    uint64_t inode = 0;
    if (words.size() < kWordsMin || !read_end(words[kLocal], here) ||
        !read_end(words[kRemote], there) || !read_number(words[kState], state, 16) ||
        !read_number(words[kUser], user, 10) || !read_number(words[kInode], inode, 10)) {
      continue;
    }
    if (here.port != local.port) continue;
    if (state == kListening) {
      if (is_same(here.address, local.address)) listener = user;
      if (is_any(here.address) && !listener) listener = user;
    } else if (is_same(here.address, local.address) && is_same(there.address, remote.address) &&
               there.port == remote.port) {
      // A socket without an inode belongs to no program. The kernel shows root as its user.
      if (inode != 0) program = user;
      is_connected = true;
    }
  }
  return is_connected && listens && listener ? listener : program;
}

Result<PeerUsers> PeerUsers::open() {
  UniqueFd v4(::open("/proc/thread-self/net/tcp", O_RDONLY | O_CLOEXEC));
  if (!v4) return system_failure("open", "/proc/thread-self/net/tcp");
  UniqueFd v6(::open("/proc/thread-self/net/tcp6", O_RDONLY | O_CLOEXEC));
  return PeerUsers(std::move(v4), std::move(v6), ::geteuid());
}

Status PeerUsers::check_target(int socket) const {
  sockaddr_storage own{}, target{};
  socklen_t own_length = sizeof own, target_length = sizeof target;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&target), &target_length) != 0) {
    return system_failure("get the addresses of", "the connection to the target");
  }
  return check(end_of(target), end_of(own), /*listens=*/true);
}

Status PeerUsers::check_source(const std::string& source, const std::string& target) const {
  SocketEnd from, to;
  if (!parse_end(source, from) || !parse_end(target, to)) {
    return failure(EACCES, "the user of the connection from " + source + " is unknown");
  }
  return check(from, to, /*listens=*/false);
}

Status PeerUsers::check(const SocketEnd& peer, const SocketEnd& own, bool listens) const {
  std::string text = read_table(v4_.get());
  if (v6_) text += read_table(v6_.get());
  const auto user = find_socket_user(text, peer, own, listens);
  if (user && (*user == 0 || *user == user_)) return {};
  return failure(EACCES,
                 "the other end of the connection belongs to " +
                     (user ? "user " + std::to_string(*user) : std::string("an unknown user")) +
                     ": without a key, only root and user " + std::to_string(user_) +
                     " are accepted on this machine; use --key-file on both sides");
}

}  // namespace ppmr
