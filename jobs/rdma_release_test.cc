// Tests rdma_release.h, the header for messaging libraries, and the part of ppmr that communicates
// with programs that include the header.
#include "jobs/rdma_release.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "base/test_directory.h"
#include "base/unique_fd.h"
#include "preflight/rdma_release/rdma_release.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000};

// Runs the progress loop of a messaging library in a thread of this process.
class Library {
 public:
  explicit Library(const char* error = nullptr) : error_(error) {
    EXPECT_EQ(ppmr_rdma_open(&rdma_), 0);
    EXPECT_EQ(pipe2(stop_, O_CLOEXEC), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~Library() {
    close(stop_[1]);
    thread_.join();
    close(stop_[0]);
    ppmr_rdma_close(&rdma_);
  }
  std::string heard() {
    std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  void serve() {
    for (;;) {
      pollfd fds[2] = {{.fd = ppmr_rdma_fd(&rdma_), .events = POLLIN, .revents = 0},
                       {.fd = stop_[0], .events = POLLIN, .revents = 0}};
      poll(fds, 2, ppmr_rdma_timeout_ms(&rdma_));
      if (fds[1].revents != 0) return;
      const ppmr_rdma_request request = ppmr_rdma_next(&rdma_);
      if (request == PPMR_RDMA_NONE) continue;
      {
        std::lock_guard lock(mutex_);
        heard_ += request == PPMR_RDMA_RELEASE ? "release " : "resume ";
      }
      ppmr_rdma_done(&rdma_, error_);
    }
  }

  const char* const error_;
  ppmr_rdma rdma_{};
  int stop_[2];
  std::mutex mutex_;
  std::string heard_;  // guarded by mutex_
  std::thread thread_;
};

RdmaListener only_listener() {
  const auto found = find_rdma_listeners({getpid()});
  if (!found || found->size() != 1) throw std::runtime_error("there is not one listener");
  return found->front();
}

TEST(RdmaRelease, ProcessIsAskedToReleaseAndToResume) {
  Library library;
  const auto released = release_rdma({getpid()}, kPatience);
  ASSERT_TRUE(released) << released.error().message;
  EXPECT_EQ(*released, 1u);
  const Status resumed = resume_rdma({getpid()}, kPatience);
  EXPECT_TRUE(resumed) << resumed.error().message;
  EXPECT_EQ(library.heard(), "release resume ");
}

TEST(RdmaRelease, ProcessWithoutASocketIsNotAsked) {
  const auto released = release_rdma({getpid()}, kPatience, "/none/");
  ASSERT_TRUE(released) << released.error().message;
  EXPECT_EQ(*released, 0u);
  EXPECT_TRUE(resume_rdma({getpid()}, kPatience));
}

TEST(RdmaRelease, ResumeOfAProcessThatHasReleasedNothingSucceeds) {
  Library library;
  EXPECT_TRUE(resume_rdma({getpid()}, kPatience));
  EXPECT_EQ(library.heard(), "");
}

TEST(RdmaRelease, EveryListenerOfAProcessIsAskedAndAReleaseMayBeRepeated) {
  Library first, second;
  ASSERT_TRUE(release_rdma({getpid()}, kPatience));
  ASSERT_TRUE(release_rdma({getpid()}, kPatience));
  ASSERT_TRUE(resume_rdma({getpid()}, kPatience));
  EXPECT_EQ(first.heard(), "release release resume ");
  EXPECT_EQ(second.heard(), "release release resume ");
}

TEST(RdmaRelease, ReasonOfALibraryThatRefusesIsReported) {
  Library library("a transfer cannot be interrupted");
  const auto released = release_rdma({getpid()}, kPatience);
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().errno_value, ECANCELED);
  EXPECT_NE(released.error().message.find("a transfer cannot be interrupted"), std::string::npos);
  // The library has released nothing.
  EXPECT_TRUE(resume_rdma({getpid()}, kPatience));
  EXPECT_EQ(library.heard(), "release ");
}

TEST(RdmaRelease, LibraryThatDoesNotAnswerFailsAfterThePatience) {
  ppmr_rdma silent{};
  ASSERT_EQ(ppmr_rdma_open(&silent), 0);
  const auto released = release_rdma({getpid()}, milliseconds(50));
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().errno_value, ETIMEDOUT);
  ppmr_rdma_close(&silent);
}

// Connections that the library does not accept fill the queue of the socket.
TEST(RdmaRelease, EachOfManyRequestsToASilentLibraryEndsAfterThePatience) {
  ppmr_rdma silent{};
  ASSERT_EQ(ppmr_rdma_open(&silent), 0);
  for (int i = 0; i < 8; ++i) {
    const auto check = check_rdma_listener(only_listener(), milliseconds(20));
    ASSERT_FALSE(check);
    EXPECT_EQ(check.error().errno_value, ETIMEDOUT) << check.error().message;
  }
  const auto checks = check_rdma_listeners({only_listener()}, milliseconds(20));
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_NE(checks[0].silence, "");
  ppmr_rdma_close(&silent);
}

TEST(RdmaRelease, LibraryThatClosesTheConnectionHasNotReleased) {
  ppmr_rdma rdma{};
  ASSERT_EQ(ppmr_rdma_open(&rdma), 0);
  const RdmaListener listener = only_listener();
  std::thread closer([&] {
    pollfd waits{.fd = ppmr_rdma_fd(&rdma), .events = POLLIN, .revents = 0};
    poll(&waits, 1, -1);
    while (ppmr_rdma_next(&rdma) != PPMR_RDMA_RELEASE) poll(nullptr, 0, 1);
    ppmr_rdma_close(&rdma);
  });
  const Status asked = ask_rdma_listener(listener, "release", kPatience);
  closer.join();
  ASSERT_FALSE(asked);
  EXPECT_EQ(ask_rdma_listener(listener, "resume", kPatience).error().errno_value, ECONNREFUSED);
}

TEST(RdmaRelease, DeviceThatIsStillOpenOrMappedIsNamed) {
  Library library;
  const TestDirectory directory;
  const std::string device = directory.path() + "/uverbs0";
  UniqueFd open_device(open(device.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(open_device.get(), 4096), 0);
  const auto message_of_release = [&] {
    const auto released = release_rdma({getpid()}, kPatience, directory.path() + "/");
    return released ? "" : released.error().message;
  };
  EXPECT_NE(message_of_release().find(device), std::string::npos);
  void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, open_device.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  open_device.reset();
  EXPECT_NE(message_of_release().find(device), std::string::npos);
  munmap(mapped, 4096);
  EXPECT_EQ(message_of_release(), "");
}

TEST(RdmaRelease, SocketThatAChildSharesIsAskedOnce) {
  Library library;
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_EQ(find_rdma_listeners({getpid(), child})->size(), 1u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  // This listener has ended, so it is skipped.
  EXPECT_EQ(find_rdma_listeners({getpid(), child})->size(), 1u);
}

TEST(RdmaReleaseHeader, ResumesByItselfAfterTheDeadline) {
  ppmr_rdma rdma{};
  ASSERT_EQ(ppmr_rdma_open(&rdma), 0);
  EXPECT_EQ(ppmr_rdma_timeout_ms(&rdma), -1);
  EXPECT_EQ(ppmr_rdma_next(&rdma), PPMR_RDMA_NONE);
  rdma.deadline_ms = ppmr_rdma_now_ms() + 1000;
  EXPECT_GT(ppmr_rdma_timeout_ms(&rdma), 0);
  EXPECT_EQ(ppmr_rdma_next(&rdma), PPMR_RDMA_NONE);
  rdma.deadline_ms = ppmr_rdma_now_ms() - 1;
  EXPECT_EQ(ppmr_rdma_next(&rdma), PPMR_RDMA_RESUME);
  ppmr_rdma_done(&rdma, nullptr);
  EXPECT_EQ(ppmr_rdma_next(&rdma), PPMR_RDMA_NONE);
  // The deadline comes from the clock of another machine.
  rdma.deadline_ms = ppmr_rdma_now_ms() + 100LL * PPMR_RDMA_AWAY_MS;
  EXPECT_EQ(ppmr_rdma_next(&rdma), PPMR_RDMA_RESUME);
  ppmr_rdma_close(&rdma);
}

// A library that forgot its release would never resume: neither after the deadline nor on request.
TEST(RdmaReleaseHeader, ReleaseIsNotForgottenWhenAnotherRequestIsRefused) {
  Library library;
  const RdmaListener listener = only_listener();
  ASSERT_TRUE(ask_rdma_listener(listener, "release", kPatience));
  EXPECT_FALSE(ask_rdma_listener(listener, "explode", kPatience));
  EXPECT_FALSE(check_rdma_listener(listener, kPatience));
  ASSERT_TRUE(ask_rdma_listener(listener, "resume", kPatience));
  EXPECT_EQ(library.heard(), "release resume ");
}

TEST(RdmaReleaseHeader, CheckGoesOnlyToALibraryThatAnswersIt) {
  ppmr_rdma rdma{};
  ASSERT_EQ(ppmr_rdma_open(&rdma), 0);
  const RdmaListener listener = only_listener();
  const auto check_while_serving = [&] {
    std::atomic<bool> is_done = false;
    std::thread library([&] {
      while (!is_done) {
        if (ppmr_rdma_next(&rdma) == PPMR_RDMA_CHECK)
          ppmr_rdma_answer(&rdma, PPMR_RDMA_CHECKED "\nhindrance none of your business\n");
        pollfd waits{.fd = ppmr_rdma_fd(&rdma), .events = POLLIN, .revents = 0};
        poll(&waits, 1, 1);
      }
    });
    const auto check = check_rdma_listener(listener, kPatience);
    is_done = true;
    library.join();
    return check;
  };
  const auto refused = check_while_serving();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, ECANCELED);
  rdma.answers_checks = 1;
  const auto answered = check_while_serving();
  ASSERT_TRUE(answered) << answered.error().message;
  EXPECT_EQ(answered->pid, getpid());
  EXPECT_EQ(answered->hindrances, std::vector<std::string>{"none of your business"});
  EXPECT_EQ(ppmr_rdma_timeout_ms(&rdma), -1) << "nothing was released";
  ppmr_rdma_close(&rdma);
}

TEST(RdmaReleaseHeader, UnknownRequestsAreRefused) {
  Library library;
  const Status asked = ask_rdma_listener(only_listener(), "explode", kPatience);
  ASSERT_FALSE(asked);
  EXPECT_NE(asked.error().message.find("unknown request"), std::string::npos);
  EXPECT_EQ(library.heard(), "");
}

TEST(RdmaReleaseHeader, OtherUsersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Library library;
  const RdmaListener listener = only_listener();
  // The library also accepts requests of root, so the test asks as a user that is neither root nor
  // the owner.
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(3);
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
    listener.name.copy(name.sun_path + 1, listener.name.size());
    const auto size = offsetof(sockaddr_un, sun_path) + 1 + listener.name.size();
    char answer[64] = {};
    if (connect(socket, reinterpret_cast<sockaddr*>(&name), static_cast<socklen_t>(size)) != 0) {
      _exit(2);
    }
    (void)!send(socket, "release", 7, MSG_NOSIGNAL);
    (void)!recv(socket, answer, sizeof(answer) - 1, 0);
    // The answer is "not permitted", or nothing if the library closes the connection first.
    _exit(std::string_view(answer) != "ok" ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(library.heard(), "");
}

}  // namespace
}  // namespace ppmr
