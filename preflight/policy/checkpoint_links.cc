#include "preflight/policy/checkpoint_links.h"

#include <filesystem>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUp = "../";

// Returns whether the link is the one that CRIU makes to the directory of the round before.
// `depth`: how deep the link's directory is in the checkpoint; 0: the checkpoint itself, where such
// a link would lead to another checkpoint.
bool is_round(const fs::directory_entry& link, int depth) {
  std::error_code error;
  const std::string to = fs::read_symlink(link.path(), error);
  if (error || depth == 0 || link.path().filename() != "parent" || !to.starts_with(kUp))
    return false;
  const std::string name = to.substr(kUp.size());
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

std::string in_quotes(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Status refuse_links(const std::string& checkpoint) {
  std::error_code error;
  fs::recursive_directory_iterator entry(checkpoint, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const bool is_link = entry->is_symlink(error);
    if (error) break;  // increment() would clear the error, and so accept an unchecked entry
    if (!is_link || is_round(*entry, entry.depth())) continue;
    const std::string name = entry->path().lexically_relative(checkpoint);
    return failure(ELOOP, "the checkpoint has the symbolic link " + in_quotes(name) +
                              ", which CRIU never makes: CRIU would read another file");
  }
  if (error) return system_failure("list", checkpoint, error.value());
  return {};
}

}  // namespace ppmr
