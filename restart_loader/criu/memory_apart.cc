#include "restart_loader/criu/memory_apart.h"

#include <string.h>

namespace ppmr {
namespace {

constexpr uint64_t kTimesTenMax = UINT64_MAX / 10 - 1;

// Returns the number at `text`, and moves `text` behind it; 0: there is none, or it is too large.
uint64_t take_number(const char*& text) {
  uint64_t number = 0;
  while (*text >= '0' && *text <= '9') {
    if (number > kTimesTenMax) return 0;
    number = number * 10 + static_cast<uint64_t>(*text++ - '0');
  }
  return number;
}

}  // namespace

uint64_t number_in_image_name(const char* name, const char* prefix) {
  const size_t length = strlen(prefix);
  if (strncmp(name, prefix, length) != 0) return 0;
  name += length;
  const uint64_t number = take_number(name);
  return strcmp(name, ".img") == 0 ? number : 0;
}

bool next_memory_apart(char*& text, MemoryApartLine& line) {
  char* const end = strchr(text, '\n');
  if (end == nullptr) return false;
  *end = '\0';
  const char* at = text;
  line.inode = take_number(at);
  line.path = at[0] == ' ' && at[1] == '/' ? at + 1 : nullptr;
  line.device = 0;
  if (*at == ' ' && line.path == nullptr) line.device = take_number(++at);
  const bool is_whole = line.inode != 0 && (*at == '\0' || line.path != nullptr);
  text = end + 1;
  return is_whole;
}

}  // namespace ppmr
