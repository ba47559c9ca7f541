#include "restart_loader/criu/work_directory.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace ppmr {
namespace {

constexpr const char* kParent = "/run/ppmr";

// CRIU trusts the files in its work directory, such as the socket of the pager.
Status check_private(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return system_failure("read the attributes of", path);
  if (!S_ISDIR(status.st_mode)) return system_failure("use the work directory", path, ENOTDIR);
  if ((status.st_uid != 0 && status.st_uid != geteuid()) ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return failure(EPERM, "work directory " + path +
                              ": other users can change it; use one of your own, mode 0700");
  }
  return {};
}

}  // namespace

Result<WorkDirectory> WorkDirectory::create(const std::string& chosen) {
  if (!chosen.empty()) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::absolute(chosen, error).lexically_normal();
    if (error) return system_failure("find the work directory", chosen, error.value());
    if (!path.has_filename()) path = path.parent_path();  // the path ends with a slash
    std::filesystem::create_directories(path.parent_path(), error);
    if (error || (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)) {
      return system_failure("create the work directory", chosen, error ? error.value() : errno);
    }
    if (Status checked = check_private(path); !checked) return failure(checked.error());
    return WorkDirectory(path, false);
  }
  if (mkdir(kParent, 0700) != 0 && errno != EEXIST)
    return system_failure("create the directory", kParent);
  if (Status checked = check_private(kParent); !checked) return failure(checked.error());
  std::string path = std::string(kParent) + "/restart-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return system_failure("create a work directory in", kParent);
  return WorkDirectory(path, true);
}

WorkDirectory::~WorkDirectory() {
  std::error_code ignored;
  if (remove_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace ppmr
