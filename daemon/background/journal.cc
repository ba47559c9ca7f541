#include "daemon/background/journal.h"

#include <fmt/format.h>
#include <sys/stat.h>

namespace ppmr {

bool is_journal(int fd, const char* stream) {
  struct stat facts {};
  if (stream == nullptr || fstat(fd, &facts) != 0) return false;
  return fmt::format("{}:{}", facts.st_dev, facts.st_ino) == stream;
}

std::string_view journal_prefix(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical:
      return "<2>";
    case spdlog::level::err:
      return "<3>";
    case spdlog::level::warn:
      return "<4>";
    case spdlog::level::info:
      return "<6>";
    default:
      return "<7>";
  }
}

}  // namespace ppmr
