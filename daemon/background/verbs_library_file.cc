#include "daemon/background/verbs_library_file.h"

#include <fmt/format.h>

#include <filesystem>

namespace ppmr {
namespace {

constexpr const char* kLibrary = "libppmr-verbs.so";

}  // namespace

Result<std::string> find_verbs_library(const std::string& directory_of_ppmr) {
  const std::string places[] = {
      directory_of_ppmr + "/" + kLibrary,
      directory_of_ppmr + "/verbs_library/" + kLibrary,  // in Bazel's output
      directory_of_ppmr + "/../lib/ppmr/" + kLibrary,    // where the package installs it
  };
  for (const std::string& place : places) {
    std::error_code error;
    const auto found = std::filesystem::canonical(place, error);
    if (!error) return found.string();
  }
  return failure(ENOENT, fmt::format("find {}: it is in none of {}, {}, {}; install the package "
                                     "ppmr, or run `bazel build //verbs_library/...`",
                                     kLibrary, places[0], places[1], places[2]));
}

}  // namespace ppmr
