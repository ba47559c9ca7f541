#include "processes/finding.h"

namespace ppmr {

std::string list_of(const std::vector<std::string>& items) {
  constexpr size_t kNamedMax = 8;
  std::string text;
  for (size_t i = 0; i < items.size() && i < kNamedMax; ++i) {
    text += (i == 0 ? "" : ", ") + items[i];
  }
  if (items.size() > kNamedMax) {
    text += " and " + std::to_string(items.size() - kNamedMax) + " more";
  }
  return text;
}

std::string list_of(const std::vector<pid_t>& pids) {
  std::vector<std::string> items;
  for (const pid_t pid : pids) items.push_back(std::to_string(pid));
  return list_of(items);
}

}  // namespace ppmr
