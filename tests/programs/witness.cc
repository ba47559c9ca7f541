// A program whose log shows whether two copies of it have ever run. Every few milliseconds it
// appends one line: its count, the state of a chain that depends only on the count, the node, both
// clocks, and the number of changed words in its memory. Two copies that run, even at different
// times, log the same count twice.
//
// The log is opened for each line. CRIU checks that a file which was open during the dump has the
// same length at the restore, so it would refuse a second copy instead of revealing it.
//
// With "connected" it sends a byte to itself for each line, over a TCP connection. A connection
// that is dead stops the log. While CRIU has the connection in repair mode, the calls fail.
//
// Usage: witness DIR [connected]      appends to DIR/log; creates DIR/ready when it runs

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "arithmetic.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr int64_t kLineIntervalNs = 2'000'000;
constexpr size_t kWords = (size_t{2} << 20) / sizeof(uint64_t);
constexpr size_t kWordsPerLine = 1024;  // number of words that are checked for each line
constexpr uint64_t kSeed = 7;

// Both ends of a TCP connection on the loopback interface.
class Connection {
 public:
  Connection() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    sends_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, at, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, at, &size) != 0 || connect(sends_, at, size) != 0) {
      die("connect to this process");
    }
    receives_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (receives_ < 0) die("accept from this process");
    close(listener);
  }
  void exchange(uint64_t count) const {
    const char byte = static_cast<char>(count);
    char got = 0;
    while (send(sends_, &byte, 1, MSG_NOSIGNAL) != 1) await_repair_end("send to this process");
    while (recv(receives_, &got, 1, 0) != 1) await_repair_end("receive from this process");
    if (got != byte) die("another byte came");
  }

 private:
  static void await_repair_end(const char* what) {
    if (errno != EPERM && errno != EINVAL && errno != EINTR) die(what);
    sleep_ns(1'000'000);
  }
  int sends_ = -1;
  int receives_ = -1;
};

int run(const std::string& directory, bool is_connected) {
  const auto memory = std::make_unique<uint64_t[]>(kWords);
  for (size_t i = 0; i < kWords; ++i) memory[i] = memory_word(kSeed, i);
  const auto connection = is_connected ? std::make_unique<Connection>() : nullptr;
  const std::string log = directory + "/log";
  { LineFile ready(directory + "/ready"); }
  uint64_t count = 0;
  uint64_t state = 0;
  uint64_t wrong_words = 0;
  for (Pace pace(kLineIntervalNs);; pace.wait()) {
    ++count;
    state = chain_step(state);
    if (connection) connection->exchange(count);
    for (size_t i = 0; i < kWordsPerLine; ++i) {
      const size_t at = (count * kWordsPerLine + i) % kWords;
      wrong_words += memory[at] != memory_word(kSeed, at);
    }
    char line[256];
    const int length = snprintf(
        line, sizeof line, "%llu %llu %s %lld %lld %llu\n", static_cast<unsigned long long>(count),
        static_cast<unsigned long long>(state), node_name().c_str(),
        static_cast<long long>(realtime_ns()), static_cast<long long>(monotonic_ns()),
        static_cast<unsigned long long>(wrong_words));
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) die("open of the log");
    if (write(fd, line, static_cast<size_t>(length)) != length) die("write of the log");
    close(fd);
  }
}

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  const bool is_connected = argc == 3 && strcmp(argv[2], "connected") == 0;
  if (argc != 2 && !is_connected) {
    fprintf(stderr, "usage: witness DIR [connected]\n");
    return 2;
  }
  return ppmr_programs::run(argv[1], is_connected);
}
