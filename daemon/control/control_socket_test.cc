// Both halves of the control socket.
#include "daemon/control/control_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/line_socket.h"
#include "base/parse_json.h"
#include "daemon/control/control_client.h"
#include "daemon/control/endpoint_file.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

json echo(const json& request) { return {{"ok", true}, {"echo", request}}; }

class ControlSocket : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "control_socket_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    options_.directory = path + "/ppmr";
    base_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(base_); }

  std::unique_ptr<ControlServer> serve(ControlServer::Handler handler) {
    auto server = std::move(*ControlServer::create(options_));
    server->serve(std::move(handler));
    return server;
  }
  static UniqueFd connect_to(const std::string& path) {
    UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX};
    std::copy(path.begin(), path.end(), address.sun_path);
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return client;
  }
  static std::string answer_on(const UniqueFd& client, seconds timeout = seconds(10)) {
    std::string pending;
    std::string line;
    const Status got =
        read_line(client.get(), pending, line, 1 << 20, std::chrono::steady_clock::now() + timeout);
    return got ? line : got.error().message;
  }

  ControlServerOptions options_;
  std::string base_;
};

TEST_F(ControlSocket, AnswersRequests) {
  const auto server = serve(echo);
  const auto answer = call(server->path(), {{"op", "status"}}, seconds(5));
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_TRUE(accepted(*answer).has_value());
  EXPECT_EQ((*answer)["echo"]["op"], "status");
}

TEST_F(ControlSocket, HandlerOfAPublicSocketGetsTheIdentityOfTheClient) {
  options_.public_path = base_ + "/public.sock";
  auto server = std::move(*ControlServer::create(options_));
  server->serve([](const json&, const ControlClient& client, PassedDescriptors& passed) {
    passed.to_send.emplace_back(memfd_create("passed", MFD_CLOEXEC));
    EXPECT_EQ(write(passed.to_send[0].get(), "text", 4), 4);
    return json{{"ok", true}, {"uid", client.uid}, {"pid", client.pid}};
  });
  EXPECT_EQ(server->path(), options_.public_path);
  struct stat status;
  ASSERT_EQ(stat(server->path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
  ControlCall request;
  ASSERT_TRUE(request.send(server->path(), {{"op", "x"}}, seconds(5)));
  const auto answer = request.answer(seconds(5));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->at("uid"), getuid());
  EXPECT_EQ(answer->at("pid"), getpid());
  const UniqueFd passed = request.descriptor();
  char text[5] = {};
  ASSERT_EQ(pread(passed.get(), text, 4, 0), 4);
  EXPECT_STREQ(text, "text");
}

TEST_F(ControlSocket, SecondServerOfAPublicSocketIsRefusedAndAStaleSocketIsReplaced) {
  options_.public_path = base_ + "/public.sock";
  auto server = std::move(*ControlServer::create(options_));
  const auto second = ControlServer::create(options_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().errno_value, EADDRINUSE);
  // A second name keeps the socket of the server, as if the server had been killed.
  const std::string kept = base_ + "/kept.sock";
  std::filesystem::create_hard_link(options_.public_path, kept);
  server.reset();
  std::filesystem::rename(kept, options_.public_path);
  EXPECT_TRUE(ControlServer::create(options_));
}

TEST_F(ControlSocket, EndpointOfADaemonThatDiedIsRemovedWithItsSocket) {
  auto server = std::move(*ControlServer::create(options_));
  const std::string path = server->path();
  ASSERT_TRUE(write_endpoint(path, {{"target", "node2:7440"}}));
  EXPECT_FALSE(write_endpoint(path, {})) << "replaces an existing file";
  EXPECT_EQ(read_endpoint(path)->at("target"), "node2:7440");
  const std::string kept = base_ + "/kept.sock";
  std::filesystem::create_hard_link(path, kept);
  server.reset();
  std::filesystem::rename(kept, path);
  server = std::move(*ControlServer::create(options_));
  EXPECT_EQ(read_endpoint(path).error().errno_value, ENOENT);
}

TEST_F(ControlSocket, DescriptorsThatAClientSendsAreClosed) {
  const auto server = serve(echo);
  const UniqueFd client = connect_to(server->path());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  std::vector<UniqueFd> writer(1);
  writer[0] = UniqueFd(ends[1]);
  ASSERT_TRUE(write_line(client.get(), R"({"op":"x"})",
                         std::chrono::steady_clock::now() + seconds(5), writer));
  writer.clear();
  EXPECT_NE(answer_on(client).find("true"), std::string::npos);
  char byte;
  // Blocks while another process has the write end open.
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);
}

TEST_F(ControlSocket, HandlerGetsTheDescriptorsOfItsRequestExceptOnAPublicSocket) {
  for (const bool is_public : {false, true}) {
    if (is_public) options_.public_path = base_ + "/public.sock";
    auto server = std::move(*ControlServer::create(options_));
    server->serve([](const json&, const ControlClient&, PassedDescriptors& passed) {
      return json{{"ok", true}, {"received", passed.received.size()}};
    });
    std::vector<UniqueFd> descriptors;
    for (int i = 0; i < 2; ++i) descriptors.emplace_back(memfd_create("passed", MFD_CLOEXEC));
    ControlCall request;
    ASSERT_TRUE(request.send(server->path(), {{"op", "x"}}, seconds(5), descriptors));
    const auto answer = request.answer(seconds(5));
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->at("received"), is_public ? 0 : 2);
  }
}

TEST_F(ControlSocket, AnswerCarriesAsManyDescriptorsAsTheKernelAllowsInTheirOrder) {
  auto server = std::move(*ControlServer::create(options_));
  server->serve([](const json&, const ControlClient&, PassedDescriptors& passed) {
    for (size_t i = 0; i < kDescriptorsMax; ++i) {
      passed.to_send.emplace_back(memfd_create("passed", MFD_CLOEXEC));
      EXPECT_EQ(ftruncate(passed.to_send.back().get(), static_cast<off_t>(i)), 0);
    }
    // The answer needs several calls of sendmsg(2).
    return json{{"ok", true}, {"long", std::string(1 << 20, 'x')}};
  });
  ControlCall request;
  ASSERT_TRUE(request.send(server->path(), {{"op", "x"}}, seconds(5)));
  ASSERT_TRUE(request.answer(seconds(5)));
  const auto passed = request.descriptors();
  ASSERT_EQ(passed.size(), kDescriptorsMax);
  for (size_t i = 0; i < passed.size(); ++i) {
    struct stat status;
    ASSERT_EQ(fstat(passed[i].get(), &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(i));
  }
}

TEST_F(ControlSocket, ReportsWhenItsProcessCannotHaveSoManyDescriptors) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd daemon(ends[0]), client(ends[1]);
  const auto deadline = std::chrono::steady_clock::now() + seconds(5);
  std::vector<UniqueFd> passed;
  for (int i = 0; i < 10; ++i) passed.emplace_back(memfd_create("passed", MFD_CLOEXEC));
  ASSERT_TRUE(write_line(daemon.get(), "line", deadline, passed));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};  // standard input, output and error use up this limit
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string pending, line;
  std::vector<UniqueFd> received;
  const Status read = read_line(client.get(), pending, line, 1000, deadline, &received);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EMFILE);
}

TEST_F(ControlSocket, IsPrivateAndRemovedAtTheEnd) {
  auto server = serve(echo);
  const std::string path = server->path();
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(options_.directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  server.reset();
  EXPECT_NE(stat(path.c_str(), &status), 0);
}

TEST_F(ControlSocket, PassesErrnoAndTextOfARefusal) {
  const auto server = serve([](const json&) { return refusal({ENOENT, "no checkpoint ck1"}); });
  const auto answer = call(server->path(), {{"op", "commit"}}, seconds(5));
  ASSERT_TRUE(answer.has_value());
  const Status verdict = accepted(*answer);
  ASSERT_FALSE(verdict.has_value());
  EXPECT_EQ(verdict.error().errno_value, ENOENT);
  EXPECT_EQ(verdict.error().message, "no checkpoint ck1");
}

TEST_F(ControlSocket, RefusesMalformedRequests) {
  const auto server = serve([](const json& request) {
    return json{{"ok", true}, {"op", request.at("op")}};
  });
  for (const char* line : {"nonsense", "[1,2]", "{\"other\":1}", ""}) {
    const UniqueFd client = connect_to(server->path());
    ASSERT_TRUE(
        write_line(client.get(), line, std::chrono::steady_clock::now() + seconds(5)).has_value());
    const json answer = json::parse(answer_on(client));
    EXPECT_EQ(answer["ok"], false) << line;
    EXPECT_EQ(answer["errno"], EINVAL) << line;
  }
}

// Copying and serialising JSON is recursive, so deep nesting would exhaust the thread's stack.
TEST_F(ControlSocket, RefusesDeeplyNestedRequests) {
  options_.request_max_bytes = size_t{4} << 20;
  const auto server = serve([](const json& request) {
    return json{{"ok", true}, {"request", request}};
  });
  constexpr size_t kDepth = 1'000'000;
  const UniqueFd client = connect_to(server->path());
  const std::string line = "{\"a\":" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}";
  ASSERT_TRUE(
      write_line(client.get(), line, std::chrono::steady_clock::now() + seconds(10)).has_value());
  const json answer = json::parse(answer_on(client));
  EXPECT_EQ(answer["ok"], false);
  EXPECT_EQ(answer["errno"], EINVAL);
}

TEST(ParseJson, LimitsTheDepth) {
  const auto nested = [](int depth) {
    return parse_json(std::string(static_cast<size_t>(depth), '[') +
                      std::string(static_cast<size_t>(depth), ']'));
  };
  EXPECT_TRUE(nested(kJsonDepthMax).is_array());
  EXPECT_TRUE(nested(kJsonDepthMax + 1).is_discarded());
  EXPECT_TRUE(parse_json(std::string(4 << 20, '[')).is_discarded());
  EXPECT_TRUE(parse_json("{\"op\":").is_discarded());
}

TEST(ParseJson, RefusesNumbersThatDoNotFitIntoIntegers) {
  // The conversion of one of these numbers to an integer would be undefined behaviour.
  for (const char* number : {"10000007427775013414502276", "1e300", "-1.5", "2147483648.5", "4e9",
                             "-99999999999999999999"}) {
    EXPECT_TRUE(parse_json(number).is_discarded()) << number;
    EXPECT_TRUE(parse_json(std::string("{\"op\":[") + number + "]}").is_discarded()) << number;
  }
  EXPECT_EQ(parse_json("[0.5,2147483647.0,18446744073709551615,-9223372036854775808]").size(), 4u);
}

TEST_F(ControlSocket, DropsAStalledClientAndServesOthers) {
  options_.client_timeout = milliseconds(300);
  const auto server = serve(echo);
  const UniqueFd stalled = connect_to(server->path());
  ASSERT_EQ(send(stalled.get(), "{\"op\":", 6, MSG_NOSIGNAL), 6);
  const auto answer = call(server->path(), {{"op", "status"}}, seconds(5));
  EXPECT_TRUE(answer.has_value());
  EXPECT_EQ(answer_on(stalled), "the connection was closed");
}

TEST_F(ControlSocket, RefusesAnOversizedRequest) {
  options_.request_max_bytes = 1000;
  const auto server = serve(echo);
  const UniqueFd client = connect_to(server->path());
  const std::string huge(100'000, 'x');
  send(client.get(), huge.data(), huge.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  EXPECT_EQ(json::parse(answer_on(client))["errno"], EMSGSIZE);
  EXPECT_TRUE(call(server->path(), {{"op", "status"}}, seconds(5)).has_value());
}

TEST_F(ControlSocket, RefusesClientsBeyondTheMaximum) {
  options_.clients_max = 2;
  const auto server = serve(echo);
  UniqueFd first = connect_to(server->path());
  UniqueFd second = connect_to(server->path());
  const auto refused = call(server->path(), {{"op", "status"}}, seconds(5));
  // If the server closed the connection before the request arrived, the client sees only the end of
  // the connection.
  if (refused) {
    EXPECT_EQ((*refused)["errno"], EAGAIN);
  }
  first.reset();
  for (int tries = 0; tries < 100; ++tries) {
    const auto answer = call(server->path(), {{"op", "status"}}, seconds(5));
    if (answer && accepted(*answer)) return;
    usleep(20'000);
  }
  FAIL() << "never admitted";
}

TEST_F(ControlSocket, ServesOthersWhileAHandlerBlocks) {
  std::mutex mutex;
  std::condition_variable changed;
  bool go_on = false;
  const auto server = serve([&](const json& request) -> json {
    if (request.at("op") == "wait") {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return go_on; });
    }
    return {{"ok", true}};
  });
  ControlCall waiting;
  ASSERT_TRUE(waiting.send(server->path(), {{"op", "wait"}}, seconds(5)).has_value());
  EXPECT_EQ(waiting.answer(milliseconds(50)).error().errno_value, ETIMEDOUT);
  EXPECT_TRUE(call(server->path(), {{"op", "status"}}, seconds(5)).has_value());
  {
    std::lock_guard lock(mutex);
    go_on = true;
  }
  changed.notify_all();
  EXPECT_TRUE(waiting.answer(seconds(5)).has_value());
}

TEST_F(ControlSocket, ClientTimesOutWhenTheDaemonDoesNotAnswer) {
  const auto server = std::move(*ControlServer::create(options_));
  const auto began = std::chrono::steady_clock::now();
  const auto answer = call(server->path(), {{"op", "status"}}, milliseconds(200));
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().errno_value, ETIMEDOUT);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(5));
}

TEST_F(ControlSocket, RemovesOnlySocketsOfDeadDaemons) {
  const auto running = serve(echo);
  const std::string dead = options_.directory + "/dead.sock";
  {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{.sun_family = AF_UNIX};
    std::copy(dead.begin(), dead.end(), address.sun_path);
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  const auto another = serve(echo);
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(running->path()));
  EXPECT_TRUE(call(running->path(), {{"op", "status"}}, seconds(5)).has_value());
}

TEST_F(ControlSocket, RefusesADirectoryThatIsALink) {
  std::filesystem::create_directory(base_ + "/elsewhere");
  std::filesystem::create_directory_symlink(base_ + "/elsewhere", options_.directory);
  EXPECT_FALSE(ControlServer::create(options_).has_value());
}

TEST_F(ControlSocket, RefusesOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: tries as another user";
  const auto server = serve(echo);
  for (const std::string& path : {base_, options_.directory, server->path()})
    chmod(path.c_str(), 0777);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const auto answer = call(server->path(), {{"op", "status"}}, seconds(5));
    // The server may have closed the connection before the client writes the request.
    const bool refused =
        answer ? (*answer)["errno"] == EPERM : answer.error().errno_value != ETIMEDOUT;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ControlSocket, TurnsExceptionsOfTheHandlerIntoRefusals) {
  const auto server = serve([](const json& request) -> json {
    if (request.at("op") == "memory") throw std::bad_alloc();
    if (request.at("op") == "other") throw std::runtime_error("out of luck");
    return {{"ok", true}};
  });
  auto answer = call(server->path(), {{"op", "memory"}}, seconds(10));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ((*answer)["errno"], ENOMEM);
  answer = call(server->path(), {{"op", "other"}}, seconds(10));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ((*answer)["errno"], EIO);
  EXPECT_TRUE(call(server->path(), {{"op", "status"}}, seconds(10)));
}

// While this object exists, no thread can be started, because its stack would exceed the limit of
// the address space.
class NoNewThreads {
 public:
  NoNewThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t impossible = before_;
    pthread_attr_setstacksize(&impossible, size_t{1} << 62);
    EXPECT_EQ(pthread_setattr_default_np(&impossible), 0);
  }
  ~NoNewThreads() { pthread_setattr_default_np(&before_); }

 private:
  pthread_attr_t before_;
};

TEST_F(ControlSocket, RefusesAClientWhenNoThreadCanBeStarted) {
  const auto server = serve(echo);
  {
    const NoNewThreads no_new_threads;
    const auto answer = call(server->path(), {{"op", "status"}}, seconds(10));
    // The server may have closed the connection before the client writes the request.
    if (answer) {
      EXPECT_EQ((*answer)["errno"], EAGAIN);
    } else {
      EXPECT_NE(answer.error().errno_value, ETIMEDOUT) << answer.error().message;
    }
  }
  EXPECT_TRUE(call(server->path(), {{"op", "status"}}, seconds(10)));
}

}  // namespace
}  // namespace ppmr
