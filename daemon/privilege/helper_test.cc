// The helper must be safe against a data daemon that an attacker controls. This test takes the
// place of that daemon.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/privilege/helper_messages.h"
#include "daemon/privilege/helper_process.h"
#include "daemon/privilege/privileged_helper.h"
#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

// To start an agent, the helper runs its own program with these arguments. Here the program is this
// test.
constexpr const char* kWaitingAgent = "waiting-agent";
constexpr int kAgentsSocket = 3;

class HelperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::canonical(::testing::TempDir()) / "helper_test-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    helper_.reset();
    raw_.reset();
    if (child_ > 0) {
      int status = -1;
      EXPECT_EQ(::waitpid(child_, &status, 0), child_);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "must end with its daemon";
    }
    std::filesystem::remove_all(directory_);
  }

  void start(HelperProcess::Options options) {
    std::vector<std::string> files = options.read_files;
    if (!options.append_file.empty()) files.push_back(options.append_file);
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(ends[0]);
      options.fd = ends[1];
      ::_exit(HelperProcess(std::move(options)).run());
    }
    ::close(ends[1]);
    raw_ = UniqueFd(::fcntl(ends[0], F_DUPFD_CLOEXEC, 0));
    helper_ = std::make_shared<PrivilegedHelper>(UniqueFd(ends[0]), std::move(files));
  }
  // Sends these bytes, and returns the error number of the reply.
  int errno_of(const void* bytes, size_t size) {
    if (::send(raw_.get(), bytes, size, 0) != static_cast<ssize_t>(size)) return -1;
    HelperReply reply;
    if (::recv(raw_.get(), &reply, sizeof(reply), 0) != sizeof(reply)) return -2;
    EXPECT_LE(reply.text_bytes, sizeof(reply.text));
    return reply.errno_value;
  }
  int errno_of(const HelperRequest& request) { return errno_of(&request, sizeof(request)); }

  std::string directory_;
  pid_t child_ = -1;
  UniqueFd raw_;
  std::shared_ptr<PrivilegedHelper> helper_;
};

TEST_F(HelperTest, RefusesMalformedRequestsAndContinues) {
  start({});
  HelperRequest request{.operation = HelperOperation::kIsDying, .number = ::getpid()};
  EXPECT_EQ(errno_of(&request, 1), EPROTO);
  EXPECT_EQ(errno_of(&request, sizeof(request) - 1), EPROTO);
  const std::string longer(sizeof(request) + 1, 'x');
  EXPECT_EQ(errno_of(longer.data(), longer.size()), EPROTO);
  request.text_bytes = sizeof(request.text) + 1;
  EXPECT_EQ(errno_of(request), EPROTO);
  request.text_bytes = UINT32_MAX;
  EXPECT_EQ(errno_of(request), EPROTO);
  request.text_bytes = 0;
  for (const uint32_t operation : {0u, 100u, UINT32_MAX}) {
    request.operation = static_cast<HelperOperation>(operation);
    EXPECT_EQ(errno_of(request), EOPNOTSUPP) << operation;
  }
  EXPECT_FALSE(helper_->is_dying(::getpid()));
}

TEST_F(HelperTest, DoesOnlyWhatItsCommandLineAllows) {
  start({});
  EXPECT_EQ(helper_->start_agent("node1").error().errno_value, EPERM);
  EXPECT_EQ(helper_->create_spill_file().error().errno_value, EPERM);
  EXPECT_EQ(helper_->dial(0).error().errno_value, EPERM);
  EXPECT_EQ(errno_of(HelperRequest{.operation = HelperOperation::kUnmount}), EPERM);
}

TEST_F(HelperTest, ConnectsOnlyToTheTargetOfItsCommandLine) {
  auto listener = tcp_listener("127.0.0.1:0");
  ASSERT_TRUE(listener);
  start({.connect_to = (*listener)->address(), .loopback_only = true});
  auto connector = tcp_connector((*listener)->address(), TcpReach::kAnywhere,
                                 [this](size_t number) { return helper_->dial(number); });
  ASSERT_TRUE((*connector)->connect(std::chrono::seconds(5)));
  EXPECT_TRUE((*listener)->accept());
  EXPECT_EQ(helper_->dial(1).error().errno_value, ENOENT);
  EXPECT_EQ(errno_of(HelperRequest{.operation = HelperOperation::kDial, .number = -1}), EINVAL);
}

TEST_F(HelperTest, ReachesOnlyThisMachineIfItsCommandLineSaysSo) {
  start({.connect_to = "192.0.2.1:7440", .loopback_only = true});
  EXPECT_EQ(helper_->dial(0).error().errno_value, EPERM);
}

TEST_F(HelperTest, OpensOnlyTheFilesOfItsCommandLine) {
  const std::string key = directory_ + "/key";
  const std::string audit = directory_ + "/audit";
  std::ofstream(key) << "secret";
  start({.read_files = {key}, .append_file = audit});
  const auto reading = helper_->open_again(key);
  ASSERT_TRUE(reading) << reading.error().message;
  char text[8] = {};
  EXPECT_EQ(::read(reading->get(), text, sizeof(text)), 6);
  EXPECT_EQ(::write(reading->get(), "x", 1), -1) << "the key can be written";
  const auto appending = helper_->open_again(audit);
  ASSERT_TRUE(appending) << appending.error().message;
  EXPECT_EQ(::write(appending->get(), "line\n", 5), 5);
  EXPECT_EQ(::read(appending->get(), text, sizeof(text)), -1) << "the audit file can be read";
  EXPECT_EQ(helper_->open_again("/etc/shadow").error().errno_value, EPERM);
  for (const int32_t number : {-1, 2, INT32_MAX}) {
    EXPECT_EQ(errno_of(HelperRequest{.operation = HelperOperation::kOpenAgain, .number = number}),
              EPERM);
  }
}

TEST_F(HelperTest, RefusesNamesOfPeersWithControlCharacters) {
  start({.agent = {"never-started"}});
  for (const std::string& name :
       {std::string("a\nb"), std::string("a\0b", 3), std::string("\x7f")}) {
    EXPECT_EQ(helper_->start_agent(name).error().errno_value, EINVAL);
  }
  EXPECT_EQ(helper_->start_agent(std::string(257, 'x')).error().errno_value, ENAMETOOLONG);
}

TEST_F(HelperTest, PeerWithManyOpenMigrationsDoesNotKeepOthersOut) {
  start({.agent = {kWaitingAgent}});
  std::vector<UniqueFd> open;
  for (int i = 0; i < 64; ++i) {
    auto agent = helper_->start_agent("greedy");
    ASSERT_TRUE(agent) << i << ": " << agent.error().message;
    open.push_back(std::move(*agent));
  }
  const auto refused = helper_->start_agent("greedy");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, EAGAIN);
  EXPECT_NE(refused.error().message.find("greedy has 64 migrations open"), std::string::npos);
  EXPECT_TRUE(helper_->start_agent("modest"));
  open.clear();
  while (!helper_->start_agent("greedy")) std::this_thread::yield();  // the agents end soon
}

TEST_F(HelperTest, ReportsProcessesThatAreBeingKilled) {
  start({});
  EXPECT_FALSE(helper_->is_dying(::getpid()));
  EXPECT_FALSE(helper_->is_dying(-1)) << "no process";
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ::waitpid(gone, nullptr, 0);
  EXPECT_TRUE(helper_->is_dying(gone));
}

TEST_F(HelperTest, SpillFilesHaveNoNameAndAReadOnlyDescriptor) {
  start({.spill_directory = directory_});
  auto file = helper_->create_spill_file();
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_EQ(::pwrite(file->file.get(), "bytes", 5, 0), 5);
  char bytes[5] = {};
  EXPECT_EQ(::pread(file->reading.get(), bytes, 5, 0), 5);
  EXPECT_EQ(std::string(bytes, 5), "bytes");
  EXPECT_EQ(::pwrite(file->reading.get(), "other", 5, 0), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(HelperTest, RemovesOnlyTheControlSocketOfItsCommandLine) {
  const std::string path = directory_ + "/control.sock";
  std::ofstream(path) << "x";
  std::ofstream(directory_ + "/other") << "x";
  start({.mount = {.source_label = path}});
  helper_->remove_control_socket();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/other"));
}

TEST_F(HelperTest, DropsDescriptorsThatTheDaemonSends) {
  start({});
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  HelperRequest request{.operation = HelperOperation::kIsDying, .number = ::getpid()};
  ASSERT_TRUE(send_message(raw_.get(), request, "the helper", std::span(&write_end, 1)));
  HelperReply reply;
  ASSERT_EQ(::recv(raw_.get(), &reply, sizeof(reply), 0), static_cast<ssize_t>(sizeof(reply)));
  EXPECT_EQ(reply.errno_value, 0);
  write_end.reset();
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "the helper keeps the descriptor";
}

TEST(PrivilegedHelper, ReportsAHelperThatHasEnded) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  ::close(ends[1]);
  PrivilegedHelper helper{UniqueFd(ends[0])};
  EXPECT_EQ(helper.start_agent("node1").error().errno_value, EPIPE);
  EXPECT_FALSE(helper.is_dying(1));
}

// Plays the agent: ends when its coordinator closes the connection.
int wait_for_the_end_of_the_socket() {
  char byte = 0;
  return ::read(kAgentsSocket, &byte, 1) == 0 ? 0 : 1;
}

// ---- Kept checkpoints --------------------------------------------------------------------------

TEST_F(HelperTest, TouchesKeptCheckpointsOnlyInTheKeepDirectory) {
  start({.keep_directory = directory_});
  for (const auto operation : {HelperOperation::kCreateKept, HelperOperation::kPublishKept,
                               HelperOperation::kOpenKept, HelperOperation::kRemoveKept}) {
    EXPECT_EQ(errno_of({.operation = operation, .number = -1}), EINVAL);
    HelperRequest named{.operation = operation, .number = 5};
    named.text_bytes = 9;  // ignored: a request names no file
    std::copy_n("../escape", 9, named.text);
    (void)errno_of(named);
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/../escape"));
}

TEST_F(HelperTest, CreatesPublishesOpensAndRemovesKeptCheckpoints) {
  start({.keep_directory = directory_});
  auto file = helper_->create_kept(7);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(helper_->create_kept(7).error().errno_value, EEXIST);
  ASSERT_EQ(::write(file->get(), "kept", 4), 4);
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/00000007.part"));
  EXPECT_EQ(helper_->open_kept(7).error().errno_value, ENOENT);
  ASSERT_TRUE(helper_->publish_kept(7));
  const auto reading = helper_->open_kept(7);
  ASSERT_TRUE(reading);
  EXPECT_EQ(::write(reading->get(), "x", 1), -1) << "open for reading only";
  const auto directory = helper_->open_kept_directory();
  ASSERT_TRUE(directory);
  const auto listed = list_kept_files(*directory);
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ((*listed)[0].number, 7);
  EXPECT_TRUE((*listed)[0].complete);
  ASSERT_TRUE(helper_->remove_kept(7));
  EXPECT_TRUE(helper_->remove_kept(7)) << "it is gone already";
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(HelperTest, FollowsNoLinkInTheKeepDirectory) {
  start({.keep_directory = directory_});
  std::filesystem::create_symlink("/etc/passwd", directory_ + "/00000001.kept");
  EXPECT_EQ(helper_->open_kept(1).error().errno_value, ELOOP);
  std::filesystem::create_symlink(directory_ + "/elsewhere", directory_ + "/00000002.part");
  EXPECT_EQ(helper_->create_kept(2).error().errno_value, EEXIST);
}

TEST_F(HelperTest, HasNoKeptCheckpointsWithoutAKeepDirectory) {
  start({});
  EXPECT_EQ(helper_->open_kept_directory().error().errno_value, EPERM);
  EXPECT_EQ(helper_->create_kept(1).error().errno_value, EPERM);
}

}  // namespace
}  // namespace ppmr

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == ppmr::kWaitingAgent) {
    return ppmr::wait_for_the_end_of_the_socket();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
