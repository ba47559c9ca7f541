#include "daemon/background/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

// Returns a datagram socket that sends to `name`; empty if there is no such socket.
UniqueFd connect_to(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(address.sun_path)) return {};
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (socket && connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0)
    return socket;
  spdlog::warn("cannot reach the service manager at {}: {}", name, std::strerror(errno));
  return {};
}

}  // namespace

ServiceManager::ServiceManager() : socket_(connect_to(take_variable("NOTIFY_SOCKET"))) {
  const std::string period = take_variable("WATCHDOG_USEC");
  const std::string pid = take_variable("WATCHDOG_PID");
  if (!socket_ || period.empty()) return;
  if (pid.empty() || pid == std::to_string(getpid()))
    watchdog_period_ = std::chrono::microseconds(std::strtoull(period.c_str(), nullptr, 10));
}

void ServiceManager::notify(const std::string& message) const {
  if (!socket_) return;
  if (send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    spdlog::warn("cannot send {} to the service manager: {}", message, std::strerror(errno));
}

Watchdog::Watchdog(const ServiceManager& manager, std::function<void()> check)
    : manager_(manager), check_(std::move(check)) {
  const auto period = manager.watchdog_period();
  if (period.count() > 0) thread_ = std::thread([this, period] { watch(period / 2); });
}

Watchdog::~Watchdog() {
  {
    MutexLock lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(std::chrono::microseconds interval) {
  MutexLock lock(mutex_);
  while (!end_) {
    lock.unlock();
    check_();
    manager_.notify("WATCHDOG=1");
    lock.lock();
    ending_.wait_for(mutex_, interval, [&]() PPMR_REQUIRES(mutex_) { return end_; });
  }
}

}  // namespace ppmr
