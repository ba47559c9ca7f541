#include "verbs_library/shadow/devices.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/made_once.h"

namespace ppmr::verbs {
namespace {

struct Known {
  std::mutex lock;
  std::vector<Device*> devices;     // guarded by lock
  std::vector<ibv_device**> lists;  // guarded by lock: see read_list()
};

Known& known() {
  static std::atomic<Known*> devices{nullptr};
  return made_once(devices, [] { return new Known; });
}

// Returns a new list of the real devices, which is never freed: an ibv_device lives only as long as
// a list that has it, or as long as it is open.
ibv_device** read_list(int& count) {
  ibv_device** list = real().ibv_get_device_list(&count);
  Known& all = known();
  const std::lock_guard guard(all.lock);
  if (list) all.lists.push_back(list);
  return list;
}

bool has_active_port(ibv_device* device) {
  ibv_context* opened = real().ibv_open_device(device);
  if (!opened) return false;
  ibv_port_attr port = {};
  const bool active =
      real().ibv_query_port(opened, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)) == 0 &&
      port.state == IBV_PORT_ACTIVE;
  real().ibv_close_device(opened);
  return active;
}

// Returns the shadow of a real device, which it makes at the first call for the device's name.
Device* shadow_device(ibv_device* real_device) {
  Known& all = known();
  const std::lock_guard guard(all.lock);
  for (Device* device : all.devices) {
    if (std::strcmp(device->name, real_device->name) == 0) {
      device->real = real_device;
      return device;
    }
  }
  auto* device = new Device;
  static_cast<ibv_device&>(*device) = *real_device;
  device->real = real_device;
  all.devices.push_back(device);
  return device;
}

}  // namespace

bool is_shadow(const ibv_device* device) {
  Known& all = known();
  const std::lock_guard guard(all.lock);
  return std::find(all.devices.begin(), all.devices.end(), device) != all.devices.end();
}

ibv_context* open_real_device(const Device& device) {
  int count = 0;
  ibv_device** list = read_list(count);
  if (!list) return nullptr;
  std::vector<DeviceChoice> choices;
  for (int i = 0; i < count; ++i) {
    const bool is_same = std::strcmp(list[i]->name, device.name) == 0;
    choices.push_back({list[i]->name, !is_same && has_active_port(list[i])});
  }
  const auto chosen = choose_device(device.name, choices);
  if (!chosen) {
    errno = ENODEV;
    return nullptr;
  }
  if (choices[*chosen].name != device.name)
    log("device %s is %s on this machine", device.name, choices[*chosen].name.c_str());
  return real().ibv_open_device(list[*chosen]);
}

std::vector<GidEntry> read_gids(ibv_context* real_context, uint32_t port) {
  ibv_port_attr attributes = {};
  if (real().ibv_query_port(real_context, static_cast<uint8_t>(port),
                            reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) != 0)
    return {};
  std::vector<GidEntry> found;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    GidEntry entry;
    entry.index = static_cast<uint32_t>(index);
    ibv_gid_entry known = {};
    union ibv_gid plain = {};
    if (real()._ibv_query_gid_ex &&
        real()._ibv_query_gid_ex(real_context, port, entry.index, &known, 0, sizeof(known)) == 0) {
      std::copy_n(known.gid.raw, entry.gid.size(), entry.gid.begin());
      entry.type = static_cast<int>(known.gid_type);
    } else if (real().ibv_query_gid(real_context, static_cast<uint8_t>(port), index, &plain) == 0) {
      std::copy_n(plain.raw, entry.gid.size(), entry.gid.begin());
    }
    if (entry.gid != Gid{}) found.push_back(entry);
  }
  return found;
}

void attach_device_events(Context& context) {
  const int fd = context.real->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
  epoll_ctl(context.context.async_fd, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  int real_count = 0;
  ibv_device** list = read_list(real_count);
  if (!list) return nullptr;
  auto** shown = static_cast<ibv_device**>(
      std::calloc(static_cast<size_t>(real_count) + 1, sizeof(ibv_device*)));
  if (!shown) return nullptr;
  for (int i = 0; i < real_count; ++i) shown[i] = shadow_device(list[i]);
  if (count) *count = real_count;
  return shown;
}

void ibv_free_device_list(ibv_device** list) {
  if (list && list[0] && !is_shadow(list[0])) return real().ibv_free_device_list(list);
  std::free(list);
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

__be64 ibv_get_device_guid(ibv_device* device) {
  return real().ibv_get_device_guid(is_shadow(device) ? shadow_of(device).real.load() : device);
}

int ibv_get_device_index(ibv_device* device) {
  return real().ibv_get_device_index(is_shadow(device) ? shadow_of(device).real.load() : device);
}
}
