#include "migration/source/move_notes.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

namespace ppmr {
namespace {

std::string path_of(const std::string& directory, size_t tree) {
  return fmt::format("{}/progress-{}", directory, tree);
}

}  // namespace

// A reader finds the old numbers or the new ones.
Status write_tree_notes(const std::string& directory, size_t tree, const TreeNotes& notes) {
  const std::string path = path_of(directory, tree);
  const std::string written = path + ".new";
  std::ofstream file(written);
  file << notes.round << ' ' << notes.round_bytes << ' ' << notes.earlier_bytes << ' '
       << notes.fill_bytes << ' ' << notes.missing_bytes << '\n';
  file.close();
  if (!file) return system_failure("write", written);
  if (std::rename(written.c_str(), path.c_str()) != 0) return system_failure("write", path);
  return {};
}

TreeNotes read_tree_notes(const std::string& directory, size_t tree) {
  std::ifstream file(path_of(directory, tree));
  TreeNotes notes;
  const bool is_complete(file >> notes.round >> notes.round_bytes >> notes.earlier_bytes >>
                         notes.fill_bytes >> notes.missing_bytes);
  return is_complete ? notes : TreeNotes{};
}

}  // namespace ppmr
