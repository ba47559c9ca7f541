#include "rdma_stream/verbs/verbs_resources.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ppmr {
namespace {

bool may_lock_any_memory() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

std::string mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

SocketAddress socket_address(const RailAddress& address) {
  SocketAddress result;
  if (address.is_ipv4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(result.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&v4.sin_addr, address.ip.data() + 12, sizeof v4.sin_addr);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(result.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    std::memcpy(&v6.sin6_addr, address.ip.data(), sizeof v6.sin6_addr);
  }
  return result;
}

RailAddress rail_address(const sockaddr* address) {
  RailAddress result;
  if (address->sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(*address);
    result.ip[10] = result.ip[11] = 0xff;
    std::memcpy(result.ip.data() + 12, &v4.sin_addr, sizeof v4.sin_addr);
    result.port = ntohs(v4.sin_port);
  } else if (address->sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(*address);
    std::memcpy(result.ip.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
    result.port = ntohs(v6.sin6_port);
  }
  return result;
}

Result<Anchor> bind_anchor(const RailAddress& address) {
  Anchor anchor;
  anchor.channel.reset(rdma_create_event_channel());
  if (!anchor.channel) {
    return failure(errno, "open /dev/infiniband/rdma_cm: " + std::string(std::strerror(errno)) +
                              " (load the kernel module: modprobe rdma_ucm)");
  }
  const int fd = anchor.channel->fd;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(anchor.channel.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return system_failure("create an RDMA identifier for", address.ip_text());
  }
  anchor.id.reset(id);
  SocketAddress bound = socket_address(address);
  if (rdma_bind_addr(id, bound.get()) != 0) {
    return system_failure("bind to RDMA address", address.text());
  }
  if (id->verbs == nullptr) {
    return failure(ENODEV, "RDMA address " + address.ip_text() + " belongs to no RDMA device");
  }
  return anchor;
}

VerbsPointer<rdma_cm_event> next_event(rdma_event_channel& channel) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(&channel, &event) != 0) return nullptr;
  return VerbsPointer<rdma_cm_event>(event);
}

std::string device_name(const ibv_context* context) { return ibv_get_device_name(context->device); }

std::string memlock_objection(uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= bytes || may_lock_any_memory()) {
    return "";
  }
  return "cannot register up to " + mib(bytes) + " of memory: this process may lock only " +
         mib(limit.rlim_cur) +
         "; raise the memlock limit (ulimit -l unlimited, LimitMEMLOCK=infinity of a service, "
         "memlock in /etc/security/limits.conf) or grant CAP_IPC_LOCK";
}

}  // namespace ppmr
