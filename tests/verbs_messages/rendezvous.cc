#include "tests/verbs_messages/rendezvous.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <type_traits>

namespace verbs_messages {
namespace {

static_assert(std::is_trivially_copyable_v<Hello>);
constexpr char kReady = 'r';

std::filesystem::path address_file(const std::filesystem::path& directory,
                                   const std::string& name) {
  return directory / (name + ".address");
}

Descriptor new_socket() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) fail("create a TCP socket");
  return socket;
}

Descriptor listen_anywhere() {
  Descriptor socket = new_socket();
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      listen(socket.get(), 16) != 0) {
    fail("listen on TCP");
  }
  return socket;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Hello make_hello(const std::string& from, const std::string& to, const QueuePairAddress& pair) {
  Hello hello;
  from.copy(hello.from.data(), hello.from.size() - 1);
  to.copy(hello.to.data(), hello.to.size() - 1);
  hello.queue_pair = pair;
  return hello;
}

Exchange Exchange::connect_to(const std::string& address) {
  const size_t colon = address.find(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (colon == std::string::npos ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) {
    throw Failure("this is not IP:PORT: " + address);
  }
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  Exchange exchange(new_socket());
  exchange.connecting_ = true;
  if (connect(exchange.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
      errno != EINPROGRESS) {
    fail("connect to " + address);
  }
  return exchange;
}

short Exchange::events() const { return connecting_ ? POLLOUT : POLLIN; }

bool Exchange::connected() {
  if (!connecting_) return true;
  pollfd state{.fd = fd(), .events = POLLOUT, .revents = 0};
  if (poll(&state, 1, 0) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  errno = error;
  if (error != 0) fail("connect to the partner");
  connecting_ = false;
  return true;
}

void Exchange::send_hello(const Hello& hello) { send_whole(&hello, sizeof hello); }

void Exchange::send_ready() { send_whole(&kReady, 1); }

// The few bytes of an exchange always fit into the socket's buffer.
void Exchange::send_whole(const void* data, size_t size) {
  if (send(fd(), data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) fail("send over TCP");
}

bool Exchange::receive_more(size_t size) {
  const ssize_t got = recv(fd(), bytes_.data() + received_bytes_, size - received_bytes_, 0);
  if (got < 0 && errno == EAGAIN) return false;
  if (got < 0) fail("receive over TCP");
  if (got == 0) throw Failure("the partner has closed the TCP connection");
  received_bytes_ += static_cast<size_t>(got);
  return received_bytes_ == size;
}

std::optional<Hello> Exchange::receive_hello() {
  if (!receive_more(sizeof(Hello))) return std::nullopt;
  received_bytes_ = 0;
  Hello hello;
  std::memcpy(&hello, bytes_.data(), sizeof hello);
  if (hello.magic != Hello::kMagic || hello.from.back() != 0 || hello.to.back() != 0) {
    throw Failure("the TCP connection is not from an end");
  }
  return hello;
}

bool Exchange::receive_ready() { return receive_more(1); }

// Writes the address to a second file and renames that file, so readers see a whole address or
// none.
Rendezvous::Rendezvous(std::filesystem::path directory, const std::string& name,
                       const std::string& own_address)
    : file_(address_file(directory, name)), listener_(listen_anywhere()) {
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) fail("find the TCP port");
  const std::filesystem::path fresh = file_.string() + ".new";
  std::ofstream(fresh) << own_address << ":" << ntohs(bound.sin_port) << "\n";
  if (rename(fresh.c_str(), file_.c_str()) != 0) fail("announce the address in " + file_.string());
}

Rendezvous::~Rendezvous() { unlink(file_.c_str()); }

std::optional<Exchange> Rendezvous::accept() {
  Descriptor socket(accept4(fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() < 0) return std::nullopt;
  return Exchange(std::move(socket));
}

std::optional<std::string> find_address(const std::filesystem::path& directory,
                                        const std::string& name) {
  std::ifstream file(address_file(directory, name));
  std::string address;
  if (!(file >> address)) return std::nullopt;
  return address;
}

}  // namespace verbs_messages
