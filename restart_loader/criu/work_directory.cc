#include "restart_loader/criu/work_directory.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

namespace ppmr {

Result<WorkDirectory> WorkDirectory::create(const std::string& chosen) {
  if (!chosen.empty()) {
    std::error_code error;
    std::filesystem::create_directories(chosen, error);
    if (error) return system_failure("make work directory", chosen, error.value());
    const std::filesystem::path path = std::filesystem::absolute(chosen, error);
    if (error) return system_failure("find work directory", chosen, error.value());
    return WorkDirectory(path, false);
  }
  mkdir("/run/ppmr", 0700);  // errors are ignored: without the directory mkdtemp() fails
  for (std::string path : {"/run/ppmr/restart-XXXXXX", "/tmp/ppmr-restart-XXXXXX"}) {
    if (mkdtemp(path.data()) != nullptr) return WorkDirectory(path, true);
  }
  return system_failure("make a work directory in", "/run/ppmr or /tmp");
}

WorkDirectory::~WorkDirectory() {
  std::error_code ignored;
  if (remove_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace ppmr
