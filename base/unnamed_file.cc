#include "base/unnamed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace ppmr {

Result<UnnamedFile> create_unnamed_file(const std::string& directory) {
  UnnamedFile made;
  made.file = UniqueFd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  // The file system does not support O_TMPFILE.
  if (!made.file && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = directory + "/ppmr-spill-XXXXXX";
    made.file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (made.file) ::unlink(name.c_str());
  }
  if (!made.file) return system_failure("create a spill file in", directory);
  const std::string self = "/proc/self/fd/" + std::to_string(made.file.get());
  made.reading = UniqueFd(::open(self.c_str(), O_RDONLY | O_CLOEXEC));
  if (!made.reading) return system_failure("open for reading", "a spill file in " + directory);
  return made;
}

}  // namespace ppmr
