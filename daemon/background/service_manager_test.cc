#include "daemon/background/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

class ServiceManagerTest : public testing::Test {
 protected:
  void listen(const std::string& name) {
    socket_ = UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    ASSERT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
              0);
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  std::string receive() {
    char buffer[256];
    const ssize_t size = recv(socket_.get(), buffer, sizeof(buffer), 0);
    return size < 0 ? "" : std::string(buffer, static_cast<size_t>(size));
  }
  void TearDown() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }
  UniqueFd socket_;
};

TEST_F(ServiceManagerTest, GetsMessagesAtAnAbstractName) {
  listen("@ppmr-test-" + std::to_string(getpid()));
  const ServiceManager manager;
  manager.notify("READY=1");
  EXPECT_EQ(receive(), "READY=1");
  EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr);  // child processes must not get it
}
TEST_F(ServiceManagerTest, GetsMessagesAtAPath) {
  std::string directory = std::filesystem::temp_directory_path() / "service_manager_test-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  listen(directory + "/notify");
  const ServiceManager manager;
  manager.notify("STOPPING=1");
  EXPECT_EQ(receive(), "STOPPING=1");
  std::filesystem::remove_all(directory);
}
TEST_F(ServiceManagerTest, SendsNothingWithoutAServiceManager) {
  const ServiceManager manager;
  manager.notify("READY=1");
  EXPECT_EQ(manager.watchdog_period().count(), 0);
}
TEST_F(ServiceManagerTest, WatchdogReportsEachCheckThatReturned) {
  listen("@ppmr-test-" + std::to_string(getpid()));
  setenv("WATCHDOG_USEC", "2000", 1);
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  const ServiceManager manager;
  std::atomic<int> checks{0};
  const Watchdog watchdog(manager, [&] { ++checks; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(receive(), "WATCHDOG=1");
  EXPECT_GE(checks, 3);
}
TEST_F(ServiceManagerTest, WatchdogForAnotherProcessIsIgnored) {
  listen("@ppmr-test-" + std::to_string(getpid()));
  setenv("WATCHDOG_USEC", "2000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceManager().watchdog_period().count(), 0);
}

}  // namespace
}  // namespace ppmr
