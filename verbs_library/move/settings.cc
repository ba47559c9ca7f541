#include "verbs_library/move/settings.h"

#include <cstdlib>

#include "verbs_library/shadow/made_once.h"

namespace ppmr::verbs {
namespace {

void read_text(const char* name, std::string& value) {
  if (const char* text = std::getenv(name)) value = text;
}

// Reads a time in milliseconds from the environment. Ignores a value that is not a positive number.
void read_time(const char* name, std::chrono::milliseconds& value) {
  const char* text = std::getenv(name);
  char* end = nullptr;
  const long long number = text ? std::strtoll(text, &end, 10) : 0;
  if (number > 0 && *end == 0) value = std::chrono::milliseconds(number);
}

Settings read_settings() {
  Settings read;
  read_text("PPMR_VERBS_DIRECTORY", read.directory);
  read_text("PPMR_VERBS_TOKEN_FILE", read.token_file);
  read_text("PPMR_VERBS_ADDRESS", read.control_ip);
  read_time("PPMR_VERBS_DRAIN_LIMIT_MS", read.drain_limit);
  read_time("PPMR_VERBS_HOLD_LIMIT_MS", read.hold_limit);
  read_time("PPMR_VERBS_AWAY_LIMIT_MS", read.away_limit);
  return read;
}

}  // namespace

const Settings& settings() {
  static std::atomic<const Settings*> read{nullptr};
  return made_once(read, [] { return new const Settings(read_settings()); });
}

}  // namespace ppmr::verbs
