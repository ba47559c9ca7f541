// How two ends find each other and exchange the addresses of their queue pairs, over TCP.
//
// Each end announces its address in a directory that all machines share, in NAME.address. The end
// that wants to send connects:
//
//   active:  connect, Hello ------------> passive: makes a queue pair and connects it
//   connects its queue pair <----- Hello
//   "ready", closes --------------------> may send now
//
// No TCP connection is left: CRIU cannot dump one to another machine.
//
// Threads: one. Nothing blocks. Functions throw Failure; then the caller destroys the object.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/verbs_messages/verbs_device.h"

namespace verbs_messages {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Hello {
  static constexpr std::array<char, 8> kMagic = {'v', 'm', 's', 'g', '0', '0', '0', '1'};
  std::array<char, 8> magic = kMagic;
  std::array<char, 32> from{};  // names of the ends, terminated by zero bytes
  std::array<char, 32> to{};
  QueuePairAddress queue_pair;
};
Hello make_hello(const std::string& from, const std::string& to, const QueuePairAddress& pair);

// One TCP connection, at either end of it.
class Exchange {
 public:
  // Connects to `address`, which is IP:PORT.
  static Exchange connect_to(const std::string& address);
  explicit Exchange(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  short events() const;  // the events for poll(2)
  // Returns whether the connection to the passive end is open; true at the passive end.
  bool connected();
  void send_hello(const Hello& hello);
  void send_ready();
  std::optional<Hello> receive_hello();  // returns nullopt while the hello has not arrived
  bool receive_ready();

 private:
  void send_whole(const void* data, size_t size);
  bool receive_more(size_t size);

  Descriptor socket_;
  bool connecting_ = false;
  std::array<std::byte, sizeof(Hello)> bytes_{};
  size_t received_bytes_ = 0;
};

// Listens on every address of the machine, at a port that the kernel chooses, and announces the
// address.
class Rendezvous {
 public:
  Rendezvous(std::filesystem::path directory, const std::string& name,
             const std::string& own_address);
  ~Rendezvous();  // removes the announcement

  int fd() const { return listener_.get(); }
  std::optional<Exchange> accept();

 private:
  const std::filesystem::path file_;
  const Descriptor listener_;
};

// Returns the current address of an end, or nullopt if the end is away.
std::optional<std::string> find_address(const std::filesystem::path& directory,
                                        const std::string& name);

}  // namespace verbs_messages
