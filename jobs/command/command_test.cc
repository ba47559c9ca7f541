#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "jobs/command/command_client.h"
#include "jobs/command/command_server.h"
#include "jobs/command/frame_socket.h"

namespace ppmr {
namespace {

const std::string kToken = "0123456789abcdef";

struct Pair {
  UniqueFd left, right;
};

// Connects over TCP, because there a reset discards bytes that were not read.
Pair connect_pair() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  Pair pair{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), UniqueFd()};
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), raw, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), raw, &size) != 0 || connect(pair.left.get(), raw, size) != 0) {
    std::abort();
  }
  pair.right = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return pair;
}

// A process that serves one command, and that starts as in a job node.
struct Server {
  Server() {
    Pair pair = connect_pair();
    pid = fork();
    if (pid == 0) {
      pair.left.reset();
      serve_command(std::move(pair.right), kToken);
      _exit(0);
    }
    socket = std::move(pair.left);
  }
  ~Server() {
    socket.reset();
    waitpid(pid, nullptr, 0);
  }
  UniqueFd socket;
  pid_t pid = -1;
};

CommandRequest shell(const std::string& line, const std::string& token = kToken) {
  return {.token = token,
          .argv = {"/bin/sh", "-c", line},
          .environment = {"PATH=/usr/bin:/bin", "NAME=value=with=signs"},
          .directory = "/usr"};
}

struct Ran {
  Result<CommandEnd> end = failure(EIO, "");
  std::string output, errors;
};

std::string content_of(std::FILE* file) {
  std::string text(static_cast<size_t>(lseek(fileno(file), 0, SEEK_END)), 0);
  EXPECT_EQ(pread(fileno(file), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

// Runs the client in this process. The server runs in a child (Server).
Ran run(const CommandRequest& request, int input = -1) {
  Server server;
  std::FILE* output = std::tmpfile();
  std::FILE* errors = std::tmpfile();
  Ran ran;
  ran.end =
      run_command_in_job_node(std::move(server.socket), request,
                              {.input = input, .output = fileno(output), .errors = fileno(errors)});
  ran.output = content_of(output);
  ran.errors = content_of(errors);
  std::fclose(output);
  std::fclose(errors);
  return ran;
}

Frame await_frame(FrameSocket& socket) {
  for (;;) {
    auto frame = socket.next();
    EXPECT_TRUE(frame);
    if (frame && *frame) return **frame;
    pollfd readable{socket.fd(), POLLIN, 0};
    poll(&readable, 1, 10'000);
    const Status received = socket.receive();
    EXPECT_TRUE(received) << received.error().message;
    if (!frame || !received) return {FrameType::kRefusal, 0, "no frame"};
  }
}

// A frame as bytes: kOutput, position 258, "abc".
const std::string kFrameBytes(
    "\x06\x00\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x03\x37\xcb\x62\xfe"
    "abc",
    20);

Result<std::optional<Frame>> receive_frame(const std::string& bytes) {
  Pair pair = connect_pair();
  FrameSocket receiver(std::move(pair.right));
  EXPECT_EQ(write(pair.left.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(receiver.receive());
  return receiver.next();
}

TEST(AddVariables, VariablesOfTheNodeReplaceTheCommandsAndPreloadedLibrariesAreJoined) {
  std::vector<std::string> variables = {"A=1", "LD_PRELOAD=/lib/mine.so", "AB=2"};
  add_variables(variables, {"A=3", "LD_PRELOAD=/lib/node.so"});
  EXPECT_EQ(variables,
            (std::vector<std::string>{"AB=2", "A=3", "LD_PRELOAD=/lib/node.so:/lib/mine.so"}));
  variables = {"LD_PRELOAD="};
  add_variables(variables, {"LD_PRELOAD=/lib/node.so"});
  EXPECT_EQ(variables, (std::vector<std::string>{"LD_PRELOAD=/lib/node.so"}));
}

TEST(FrameSocket, FrameThatArrivesByteByByteIsWhole) {
  Pair pair = connect_pair();
  FrameSocket receiver(std::move(pair.right));
  for (const char byte : kFrameBytes) {
    EXPECT_FALSE(receiver.next()->has_value());
    ASSERT_EQ(write(pair.left.get(), &byte, 1), 1);
    ASSERT_TRUE(receiver.receive());
  }
  const auto frame = receiver.next();
  ASSERT_TRUE(frame && frame->has_value());
  EXPECT_EQ((*frame)->type, FrameType::kOutput);
  EXPECT_EQ((*frame)->position, 258u);
  EXPECT_EQ((*frame)->payload, "abc");
}

TEST(FrameSocket, UnknownTypeAndExcessiveLengthAreErrors) {
  for (const auto& [at, byte] : {std::pair(0, '\0'), std::pair(0, '\x0c'), std::pair(9, '\x7f')}) {
    std::string bytes = kFrameBytes;
    bytes[static_cast<size_t>(at)] = byte;
    const auto frame = receive_frame(bytes);
    ASSERT_FALSE(frame);
    EXPECT_EQ(frame.error().errno_value, EPROTO);
  }
}

// After a rollback of the job node, its kernel may continue the old stream at any byte.
TEST(FrameSocket, FrameWithAWrongByteIsAnError) {
  ASSERT_TRUE(receive_frame(kFrameBytes));
  for (size_t at = 0; at < kFrameBytes.size(); ++at) {
    if (at >= 9 && at < 13) continue;  // with another length, the frame is not complete yet
    std::string bytes = kFrameBytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    const auto frame = receive_frame(bytes);
    EXPECT_FALSE(frame) << "byte " << at;
  }
}

TEST(Command, OutputErrorsAndExitCodeReachTheClient) {
  const Ran ran = run(shell("echo out; echo err >&2; pwd; echo $NAME; exit 7"));
  ASSERT_TRUE(ran.end) << ran.end.error().message;
  EXPECT_EQ(ran.end->shell_code(), 7);
  EXPECT_EQ(ran.output, "out\n/usr\nvalue=with=signs\n");
  EXPECT_EQ(ran.errors, "err\n");
}

TEST(Command, SignalThatEndedTheCommandIsReported) {
  const Ran ran = run(shell("kill -KILL $$"));
  ASSERT_TRUE(ran.end);
  EXPECT_EQ(ran.end->signal, SIGKILL);
  EXPECT_EQ(ran.end->shell_code(), 137);
}

TEST(Command, OutputLargerThanEveryBufferIsComplete) {
  const Ran ran = run(shell("head -c 3000000 /dev/zero | tr '\\0' x"));
  ASSERT_TRUE(ran.end);
  EXPECT_EQ(ran.output, std::string(3'000'000, 'x'));
}

TEST(Command, InputThatEndsAtOnceReachesTheCommand) {
  // The request and the end of the input arrive at the job node together.
  const Ran ran = run(shell("cat; echo end"));
  ASSERT_TRUE(ran.end);
  EXPECT_EQ(ran.output, "end\n");
}

TEST(Command, LargeInputReachesACommandThatIsSlow) {
  std::FILE* input = std::tmpfile();
  const std::string bytes(1'000'000, 'y');
  ASSERT_EQ(fwrite(bytes.data(), 1, bytes.size(), input), bytes.size());
  std::rewind(input);
  const Ran ran = run(shell("sleep 0.2; wc -c"), fileno(input));
  std::fclose(input);
  ASSERT_TRUE(ran.end);
  EXPECT_EQ(ran.output, "1000000\n");
}

TEST(Command, CommandThatLeavesItsInputUnreadLosesNoOutput) {
  std::FILE* input = popen("yes", "r");
  const Ran ran = run(shell("head -c 3000000 /dev/zero; exit 4"), fileno(input));
  pclose(input);
  ASSERT_TRUE(ran.end) << ran.end.error().message;
  EXPECT_EQ(ran.end->exit_code, 4);
  EXPECT_EQ(ran.output.size(), 3'000'000u);
}

TEST(Command, BytesThatAreNotTextReachTheCommandUnchanged) {
  CommandRequest request = shell("printf %s \"$1\" | od -An -tx1");
  request.argv.insert(request.argv.end(), {"sh", "\xff\xfe"});
  EXPECT_EQ(run(request).output, " ff fe\n");
}

TEST(Command, DescendantThatKeepsTheOutputOpenDoesNotDelayTheEnd) {
  const auto before = std::chrono::steady_clock::now();
  const Ran ran = run(shell("sleep 30 & echo started"));
  ASSERT_TRUE(ran.end);
  EXPECT_EQ(ran.output, "started\n");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
}

TEST(Command, ClientWithoutTheTokenIsRefused) {
  for (const std::string& token : {std::string("0123456789abcdee"), std::string()}) {
    const Ran ran = run(shell("echo ran", token));
    ASSERT_FALSE(ran.end);
    EXPECT_EQ(ran.end.error().message,
              "start a command: the client does not have the token of this job");
    EXPECT_EQ(ran.output, "");
  }
}

TEST(Command, UnknownProgramAndDirectoryAreNamed) {
  CommandRequest request = shell("true");
  request.argv = {"no-such-program"};
  EXPECT_NE(run(request).end.error().message.find("no-such-program"), std::string::npos);
  request.directory = "/no-such-directory";
  EXPECT_NE(run(request).end.error().message.find("/no-such-directory"), std::string::npos);
}

TEST(Command, ProgramIsFoundInThePathOfTheRequest) {
  const std::filesystem::path directory = testing::TempDir() + "/command_test_path";
  std::filesystem::create_directory(directory);
  std::ofstream(directory / "only-here") << "#!/bin/sh\necho found\n";
  std::filesystem::permissions(directory / "only-here", std::filesystem::perms::owner_all);
  CommandRequest request = shell("");
  request.argv = {"only-here"};
  request.environment = {"PATH=" + directory.string() + ":/bin"};
  EXPECT_EQ(run(request).output, "found\n");
}

TEST(Command, LostClientEndsTheCommand) {
  Server server;
  FrameSocket client(std::move(server.socket));
  client.send({.type = FrameType::kStart, .payload = to_text(shell("echo $$; exec sleep 60"))});
  ASSERT_TRUE(client.flush_all());
  const Frame frame = await_frame(client);
  ASSERT_EQ(frame.type, FrameType::kOutput);
  const pid_t command = std::stoi(frame.payload);
  { const FrameSocket closed = std::move(client); }
  ASSERT_EQ(waitpid(server.pid, nullptr, 0), server.pid);
  // The parent of this process has ended, so init reaps it.
  for (int i = 0; i < 1000 && kill(command, 0) == 0; ++i) {
    std::ifstream stat("/proc/" + std::to_string(command) + "/stat");
    std::string pid, name, state;
    stat >> pid >> name >> state;
    if (state == "Z") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_NE(kill(command, 0), 0);
}

TEST(Command, SignalFromTheClientReachesTheProcessGroup) {
  Server server;
  FrameSocket client(std::move(server.socket));
  client.send({.type = FrameType::kStart,
               .payload = to_text(shell(
                   "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done"))});
  ASSERT_TRUE(client.flush_all());
  EXPECT_EQ(await_frame(client).payload, "ready\n");
  client.send({.type = FrameType::kSignals, .payload = std::string(1, SIGUSR1)});
  ASSERT_TRUE(client.flush_all());
  std::string output;
  Frame frame{.type = FrameType::kOutput};
  while (frame.type != FrameType::kEnd && frame.type != FrameType::kRefusal) {
    frame = await_frame(client);
    if (frame.type == FrameType::kOutput) output += frame.payload;
  }
  EXPECT_EQ(output, "caught\n");
  EXPECT_EQ(parse_command_end(frame.payload)->exit_code, 3);
}

TEST(Command, RequestsKeepAllBytesOfArgumentsAndEnvironment) {
  CommandRequest request{.token = "t",
                         .argv = {"echo", "", "\xff\n"},
                         .environment = {"A=\xfe", "B="},
                         .directory = "/home/a b"};
  for (const bool resumable : {false, true}) {
    if (resumable) {
      request.resumption =
          Resumption{.id = new_command_id(), .patience = std::chrono::seconds(7), .got = {8, 9}};
    }
    const auto parsed = parse_command_request(to_text(request));
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->token, request.token);
    EXPECT_EQ(parsed->argv, request.argv);
    EXPECT_EQ(parsed->environment, request.environment);
    EXPECT_EQ(parsed->directory, request.directory);
    ASSERT_EQ(parsed->resumption.has_value(), resumable);
    if (!resumable) continue;
    EXPECT_EQ(parsed->resumption->id, request.resumption->id);
    EXPECT_EQ(parsed->resumption->patience.count(), 7);
    EXPECT_EQ(parsed->resumption->got.output, 8u);
    EXPECT_EQ(parsed->resumption->got.errors, 9u);
  }
}

TEST(Command, MalformedRequestsAreErrors) {
  CommandRequest without_command = shell("");
  without_command.argv.clear();
  using namespace std::string_literals;
  const std::string start = "t\0d\0\0\0\0\0"s;
  for (const std::string& text :
       {""s, "t"s, "t\0d"s, "t\0d\0"s, start, start + "1", start + "1\0"s, start + "2\0a\0"s,
        start + "x\0a\0"s, start + "18446744073709551615\0a\0"s, to_text(without_command)}) {
    EXPECT_FALSE(parse_command_request(text)) << testing::PrintToString(text);
  }
  EXPECT_TRUE(parse_command_request(start + "1\0a\0"s));
}

TEST(Command, MalformedResumptionsAreErrors) {
  CommandRequest request = shell("");
  const Resumption good{.id = new_command_id(), .patience = std::chrono::seconds(1)};
  request.resumption = good;
  EXPECT_TRUE(parse_command_request(to_text(request)));
  for (const std::string& id : {std::string("x"), good.id + "0", "../" + good.id.substr(3)}) {
    request.resumption->id = id;
    EXPECT_FALSE(parse_command_request(to_text(request))) << id;
  }
  request.resumption = good;
  for (const std::chrono::seconds patience : {std::chrono::seconds(0), std::chrono::seconds(-1),
                                              kResumptionPatienceMax + std::chrono::seconds(1)}) {
    request.resumption->patience = patience;
    EXPECT_FALSE(parse_command_request(to_text(request))) << patience.count();
  }
}

// A stranger can send this much before the job node checks the token.
TEST(Command, DeeplyNestedRequestIsAnError) {
  EXPECT_FALSE(parse_command_request(std::string(kFrameMaxBytes, '\x91')));
}

}  // namespace
}  // namespace ppmr
