#include "daemon/privilege/landlock.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

// <linux/landlock.h> of Debian 12 ends at version 3 of the interface. These values come from
// include/uapi/linux/landlock.h of Linux 6.12.
constexpr uint64_t bits(int count) { return (uint64_t{1} << count) - 1; }
constexpr uint64_t kDeviceIoctl = uint64_t{1} << 15;
constexpr uint64_t kBindTcp = uint64_t{1} << 0;
constexpr uint64_t kConnectTcp = uint64_t{1} << 1;
constexpr uint64_t kScopes = bits(2);  // abstract Unix sockets, signals

// The ruleset of the newest interface. A kernel that does not know the last fields accepts them if
// they are zero.
struct Ruleset {
  uint64_t files = 0;
  uint64_t ports = 0;
  uint64_t scopes = 0;
};

// Returns all kinds of access to files that this version of the interface can deny.
uint64_t file_access(int version) {
  if (version >= 5) return bits(16);  // also ioctl(2) on devices
  if (version >= 3) return bits(15);  // also truncation
  if (version >= 2) return bits(14);  // also renaming into another directory
  return bits(13);
}

Status allow(int ruleset, const std::string& path, uint64_t access) {
  const UniqueFd file(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!file && errno == ENOENT) return {};
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return system_failure("Landlock: open", path);
  if (!S_ISDIR(found.st_mode)) access &= ~uint64_t{LANDLOCK_ACCESS_FS_READ_DIR};
  landlock_path_beneath_attr rule{};
  rule.allowed_access = access;
  rule.parent_fd = file.get();
  if (::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0) {
    return system_failure("Landlock: allow", path);
  }
  return {};
}

}  // namespace

Result<int> restrict_with_landlock(const LandlockRules& rules) {
  const auto version = static_cast<int>(
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
  if (version < 0) return system_failure("use", "Landlock");
  Ruleset ruleset;
  ruleset.files = file_access(version);
  if (version >= 4) ruleset.ports = rules.may_connect ? kBindTcp : kBindTcp | kConnectTcp;
  if (version >= 6) ruleset.scopes = kScopes;
  const UniqueFd made(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &ruleset, sizeof(ruleset), 0)));
  if (!made) return system_failure("create", "a Landlock ruleset");
  constexpr uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
  const uint64_t write = kRead | LANDLOCK_ACCESS_FS_WRITE_FILE | (kDeviceIoctl & ruleset.files);
  for (const std::string& path : rules.readable) {
    if (Status allowed = allow(made.get(), path, kRead); !allowed) return failure(allowed.error());
  }
  for (const std::string& path : rules.writable) {
    if (Status allowed = allow(made.get(), path, write); !allowed) return failure(allowed.error());
  }
  if (::syscall(SYS_landlock_restrict_self, made.get(), 0) != 0) {
    return system_failure("restrict this process with", "Landlock");
  }
  return version;
}

}  // namespace ppmr
