#include "mount/detached_mount.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace ppmr {

std::string path_of_descriptor(const UniqueFd& file) {
  return fmt::format("/proc/{}/fd/{}", getpid(), file.get());
}

Result<UniqueFd> detached_mount(const char* type,
                                const std::vector<std::pair<const char*, std::string>>& options) {
  const UniqueFd context(fsopen(type, FSOPEN_CLOEXEC));
  if (!context) return system_failure("mount", type);
  int set = 0;
  for (const auto& [name, value] : options) {
    if (set == 0) set = fsconfig(context.get(), FSCONFIG_SET_STRING, name, value.c_str(), 0);
  }
  if (set == 0) set = fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
  if (set == 0) {
    UniqueFd mounted(fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
    if (mounted) return mounted;
  }
  const int error = errno;
  std::array<char, 512> said{};
  if (read(context.get(), said.data(), said.size() - 1) < 0) said[0] = '\0';
  const std::string reason(said.data());
  return system_failure("mount", reason.empty() ? type : fmt::format("{} ({})", type, reason),
                        error);
}

}  // namespace ppmr
