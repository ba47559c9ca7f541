// Commands that survive the connections of their client, with real processes and connections.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <thread>

#include "jobs/command/command_client.h"
#include "jobs/command/command_server.h"
#include "jobs/command/frame_socket.h"

namespace ppmr {
namespace {

using std::chrono::seconds;

const std::string kToken = "0123456789abcdef";

// A job node that serves each connection with a process, as `ppmr job init` does.
class JobNode {
 public:
  JobNode() {
    // The directory is in /tmp, because the path of a socket must be short.
    std::string name = "/tmp/job_node_test_XXXXXX";
    directory_ = mkdtemp(name.data());
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    address_ = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address_);
    auto* raw = reinterpret_cast<sockaddr*>(&address_);
    if (bind(listener_.get(), raw, size) != 0 || listen(listener_.get(), SOMAXCONN) != 0 ||
        getsockname(listener_.get(), raw, &size) != 0) {
      std::abort();
    }
    pid_ = fork();
    if (pid_ == 0) serve();
  }
  JobNode(const JobNode&) = delete;
  JobNode& operator=(const JobNode&) = delete;
  ~JobNode() {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(directory_);
  }

  UniqueFd connect() const {
    UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* raw = reinterpret_cast<const sockaddr*>(&address_);
    if (::connect(connection.get(), raw, sizeof(address_)) != 0) std::abort();
    return connection;
  }

 private:
  [[noreturn]] void serve() const {
    setpgid(0, 0);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
      UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fork() != 0) continue;
      signal(SIGCHLD, SIG_DFL);
      serve_command(std::move(client), kToken, {}, directory_);
      _exit(0);
    }
  }

  std::string directory_;
  UniqueFd listener_;
  sockaddr_in address_{};
  pid_t pid_ = -1;
};

CommandRequest shell(const std::string& line, seconds patience = seconds(60)) {
  return {.token = kToken,
          .argv = {"/bin/sh", "-c", line},
          .environment = {"PATH=/usr/bin:/bin"},
          .directory = "/",
          .resumption = Resumption{.id = new_command_id(), .patience = patience}};
}

// A client that a test drives frame by frame.
class RawClient {
 public:
  RawClient(const JobNode& node, const CommandRequest& request) : socket_(node.connect()) {
    send({.type = FrameType::kStart, .payload = to_text(request)});
  }
  void send(const Frame& frame) {
    socket_.send(frame);
    EXPECT_TRUE(socket_.flush_all());
  }
  // Returns the next frame, or nullopt when the job node has closed the connection.
  std::optional<Frame> receive() {
    for (;;) {
      auto frame = socket_.next();
      EXPECT_TRUE(frame);
      if (!frame || *frame) return frame ? *frame : std::nullopt;
      pollfd readable{socket_.fd(), POLLIN, 0};
      EXPECT_EQ(poll(&readable, 1, 20'000), 1);
      if (!socket_.receive()) return std::nullopt;
    }
  }
  // Returns the payload of the next frame, which must have this type.
  std::string expect(FrameType type) {
    const auto frame = receive();
    EXPECT_TRUE(frame && frame->type == type) << (frame ? frame->payload : "the end");
    return frame ? frame->payload : "";
  }

 private:
  FrameSocket socket_;
};

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
  UniqueFd read, write;
};

// The client's connections, which a test cuts.
class Connections {
 public:
  explicit Connections(const JobNode& node) : node_(node) {}
  Result<UniqueFd> connect() {
    ++count_;
    UniqueFd connection = node_.connect();
    current_ = dup(connection.get());
    return connection;
  }
  void cut() {
    const UniqueFd socket(current_.exchange(-1));
    if (socket) shutdown(socket.get(), SHUT_RDWR);
  }
  ~Connections() { const UniqueFd last(current_.exchange(-1)); }
  int count() const { return count_; }

 private:
  const JobNode& node_;
  std::atomic<int> current_ = -1, count_ = 0;
};

std::string read_all(int fd, const std::function<void(size_t)>& on_progress = {}) {
  std::string all;
  std::array<char, 65536> bytes;
  for (ssize_t count = 0; (count = read(fd, bytes.data(), bytes.size())) > 0;) {
    all.append(bytes.data(), static_cast<size_t>(count));
    if (on_progress) on_progress(all.size());
  }
  return all;
}

std::string random_bytes(size_t size) {
  std::mt19937_64 random(4711);
  std::string bytes;
  while (bytes.size() < size) {
    const uint64_t word = random();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return bytes;
}

TEST(ResumableCommand, TwentyCutsChangeNeitherInputNorOutput) {
  constexpr int kCuts = 20;
  constexpr size_t kBetweenCuts = 400'000;
  const std::string bytes = random_bytes((kCuts + 2) * kBetweenCuts);
  const JobNode node;
  Connections connections(node);
  Pipe input, output, errors;
  Result<CommandEnd> end = failure(EIO, "");
  std::thread client([&] {
    end = run_command_in_job_node(*connections.connect(), shell("tee /dev/stderr; exit 5"),
                                  {.input = input.read.get(),
                                   .output = output.write.get(),
                                   .errors = errors.write.get(),
                                   .reconnect = [&] { return connections.connect(); }});
    for (Pipe* each : {&output, &errors}) each->write.reset();
    input.read.reset();
  });
  std::thread writer([&] {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t count = write(input.write.get(), bytes.data() + at, bytes.size() - at);
      if (count <= 0) return;  // the client has failed
      at += static_cast<size_t>(count);
    }
    input.write.reset();
  });
  std::string got_errors;
  std::thread reader([&] { got_errors = read_all(errors.read.get()); });
  size_t next_cut = kBetweenCuts;
  int cuts = 0;
  const std::string got = read_all(output.read.get(), [&](size_t size) {
    if (size < next_cut || cuts == kCuts) return;
    ++cuts;
    next_cut += kBetweenCuts;  // a read may have returned more
    connections.cut();
  });
  client.join();
  writer.join();
  reader.join();
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(end->exit_code, 5);
  EXPECT_EQ(cuts, kCuts);
  EXPECT_GT(connections.count(), kCuts / 2);  // some cuts hit a connection before it is used
  EXPECT_TRUE(got == bytes) << got.size();
  EXPECT_TRUE(got_errors == bytes) << got_errors.size();
}

TEST(ResumableCommand, ClientConnectsAgainWhenTheJobNodeWasRolledBack) {
  const JobNode node;
  Connections connections(node);
  Pipe input, output;
  bool rolled_back = true;
  const auto end = run_command_in_job_node(
      *connections.connect(), shell("read line; echo got $line"),
      {.input = input.read.get(),
       .output = output.write.get(),
       .check =
           [&] {
             return Result<CommandNews>(std::exchange(rolled_back, false) ? CommandNews::kRolledBack
                                                                          : CommandNews::kNone);
           },
       .reconnect =
           [&] {
             EXPECT_EQ(write(input.write.get(), "it\n", 3), 3);
             return connections.connect();
           }});
  output.write.reset();
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(connections.count(), 2);
  EXPECT_EQ(read_all(output.read.get()), "got it\n");
}

TEST(ResumableCommand, ClientWhoseOutputIsStoppedConnectsAgain) {
  const JobNode node;
  Connections connections(node);
  Pipe output;
  std::promise<void> connected_again;
  Result<CommandEnd> end = failure(EIO, "");
  std::thread client([&] {
    end = run_command_in_job_node(*connections.connect(), shell("head -c 3000000 /dev/zero"),
                                  {.input = -1, .output = output.write.get(), .reconnect = [&] {
                                     if (connections.count() == 1) connected_again.set_value();
                                     return connections.connect();
                                   }});
    output.write.reset();
  });
  // The command writes more than the pipe can hold, and the test does not read from the pipe.
  pollfd readable{output.read.get(), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 20'000), 1);
  connections.cut();
  connected_again.get_future().wait();
  EXPECT_EQ(read_all(output.read.get()).size(), 3'000'000u);
  client.join();
  EXPECT_TRUE(end) << end.error().message;
}

TEST(ResumableCommand, CommandStartsOnceIfItsFirstConnectionsAreLost) {
  const JobNode node;
  Connections connections(node);
  Pipe output;
  // The request is lost on some connections, and the answer on others.
  const auto connect = [&] {
    auto connection = connections.connect();
    const int lost = connections.count() % 2 == 0 ? SHUT_RD : SHUT_RDWR;
    if (connections.count() < 5) shutdown(connection->get(), lost);
    return connection;
  };
  const std::string starts = testing::TempDir() + "/starts-of-a-command";
  std::remove(starts.c_str());
  const auto end =
      run_command_in_job_node(*connect(), shell("echo one >>" + starts + "; wc -l <" + starts),
                              {.input = -1, .output = output.write.get(), .reconnect = connect});
  output.write.reset();
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(read_all(output.read.get()), "1\n");
  EXPECT_GE(connections.count(), 2);
}

TEST(ResumableCommand, ClientGivesUpAfterItsPatience) {
  const JobNode node;
  Connections connections(node);
  Pipe output;
  connections.connect();
  auto first = node.connect();
  shutdown(first.get(), SHUT_RDWR);
  const auto end = run_command_in_job_node(
      std::move(first), shell("echo ran", seconds(1)),
      {.input = -1, .output = output.write.get(), .reconnect = []() -> Result<UniqueFd> {
         return failure(EHOSTUNREACH, "no way to the node");
       }});
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().errno_value, ETIMEDOUT);
  EXPECT_NE(end.error().message.find("no way to the node"), std::string::npos);
}

TEST(ResumableCommand, EndOfACommandIsSentUntilTheClientHasIt) {
  const JobNode node;
  CommandRequest request = shell("echo out; exit 5");
  {
    RawClient client(node, request);
    client.expect(FrameType::kAttached);
    EXPECT_EQ(client.expect(FrameType::kOutput), "out\n");
    EXPECT_EQ(parse_command_end(client.expect(FrameType::kEnd))->exit_code, 5);
  }
  request.resumption->got.output = 2;
  {
    RawClient client(node, request);
    client.expect(FrameType::kAttached);
    EXPECT_EQ(client.expect(FrameType::kOutput), "t\n");
    EXPECT_EQ(parse_command_end(client.expect(FrameType::kEnd))->exit_code, 5);
    client.send({.type = FrameType::kEndTaken});
  }
  // The process of the command may still serve connections, and a new one may replace the last one
  // before kEndTaken is read. When it has ended, the job node does not start the command again.
  for (;;) {
    RawClient client(node, request);
    auto frame = client.receive();
    const bool is_served = !frame || frame->type == FrameType::kAttached;
    while (is_served && frame && frame->type != FrameType::kEnd) frame = client.receive();
    if (is_served && frame) client.send({.type = FrameType::kEndTaken});
    if (is_served) continue;
    EXPECT_EQ(frame->type, FrameType::kRefusal);
    EXPECT_EQ(frame->position, static_cast<uint64_t>(ESTALE));
    break;
  }
}

TEST(ResumableCommand, NewConnectionReplacesTheOldOne) {
  const JobNode node;
  const CommandRequest request = shell("read line; echo $line");
  RawClient old(node, request);
  old.expect(FrameType::kAttached);
  old.send({FrameType::kInput, 0, "on"});
  RawClient other(node, request);
  // The old connection may be replaced before its input is read.
  const auto positions = parse_input_positions(other.expect(FrameType::kAttached));
  ASSERT_TRUE(positions);
  EXPECT_FALSE(old.receive());
  other.send({FrameType::kInput, positions->input, positions->input == 0 ? "one\n" : "e\n"});
  EXPECT_EQ(other.expect(FrameType::kOutput), "one\n");
}

TEST(ResumableCommand, ClientNeedsTheTokenAndTheId) {
  const JobNode node;
  const CommandRequest request = shell("echo secret; read line");
  RawClient owner(node, request);
  owner.expect(FrameType::kAttached);
  EXPECT_EQ(owner.expect(FrameType::kOutput), "secret\n");

  CommandRequest without_token = request;
  without_token.token.back() = 'x';
  EXPECT_EQ(RawClient(node, without_token).expect(FrameType::kRefusal),
            "start a command: the client does not have the token of this job");
  CommandRequest malformed_id = request;
  malformed_id.resumption->id = "../command-" + request.resumption->id.substr(11);
  RawClient(node, malformed_id).expect(FrameType::kRefusal);
  // With another ID, a member of the job starts another command.
  CommandRequest other_id = request;
  other_id.resumption->id = new_command_id();
  other_id.argv.back() = "echo other";
  RawClient other(node, other_id);
  other.expect(FrameType::kAttached);
  EXPECT_EQ(other.expect(FrameType::kOutput), "other\n");

  owner.send({FrameType::kInput, 0, "\n"});
  owner.expect(FrameType::kEnd);
}

TEST(ResumableCommand, PositionThatTheClientCannotHaveIsRefused) {
  const JobNode node;
  // The command writes more than the window, so the job node no longer has the first bytes.
  CommandRequest request = shell("head -c 1000000 /dev/zero; read line");
  RawClient client(node, request);
  client.expect(FrameType::kAttached);
  uint64_t got = 0;
  while (got < 1'000'000) {
    got += client.expect(FrameType::kOutput).size();
    client.send({FrameType::kConfirm, got, std::string(1, char(FrameType::kOutput))});
  }
  RawClient(node, request).expect(FrameType::kRefusal);
  client.send({FrameType::kInput, 0, "\n"});
  client.expect(FrameType::kEnd);
}

TEST(ResumableCommand, CommandEndsWhenItsClientIsAwayForTooLong) {
  const JobNode node;
  const CommandRequest request = shell("echo $$; exec sleep 600", seconds(1));
  pid_t command = -1;
  {
    RawClient client(node, request);
    client.expect(FrameType::kAttached);
    command = std::stoi(client.expect(FrameType::kOutput));
  }
  while (kill(command, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (;;) {
    RawClient client(node, request);
    const auto frame = client.receive();
    if (!frame) continue;  // the process of the command is just ending
    EXPECT_EQ(frame->type, FrameType::kRefusal);
    EXPECT_EQ(frame->position, static_cast<uint64_t>(ESTALE));
    break;
  }
}

}  // namespace
}  // namespace ppmr
