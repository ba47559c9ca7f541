#include "restart_loader/containers/container_record.h"

#include <string_view>

namespace ppmr {
namespace {

// runc limits names to this length.
constexpr size_t kNameMaxBytes = 255;
constexpr std::string_view kNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-.";

}  // namespace

bool is_container_name(const std::string& name) {
  return !name.empty() && name.size() <= kNameMaxBytes && name != "." && name != ".." &&
         name[0] != '-' && name.find_first_not_of(kNameCharacters) == std::string::npos;
}

}  // namespace ppmr
