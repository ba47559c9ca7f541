// A library for LD_PRELOAD: getuid() and geteuid() return $OTHER_UID. Tests preload it into servers
// that refuse to run as root.
#include <sys/types.h>

#include <cstdlib>

namespace {

uid_t other_uid() {
  const char* text = std::getenv("OTHER_UID");
  return text == nullptr ? 0 : static_cast<uid_t>(std::strtoul(text, nullptr, 10));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) uid_t getuid() { return other_uid(); }
extern "C" __attribute__((visibility("default"))) uid_t geteuid() { return other_uid(); }
