#include "cli/timeline/picture_file.h"

#include <unistd.h>

#include <cstdio>

#include "base/whole_file.h"

namespace ppmr {

Result<std::string> write_picture(const std::string& directory, const std::string& id,
                                  const std::string& svg) {
  const std::string path = directory + "/" + id.substr(0, 8) + ".svg";
  const std::string unfinished = path + ".new";
  unlink(unfinished.c_str());  // of a run that was killed before it renamed the file
  const Status written = write_whole_file(unfinished, svg, O_EXCL, 0644);
  if (!written) return failure(written.error());
  if (std::rename(unfinished.c_str(), path.c_str()) == 0) return path;
  auto failed = system_failure("write", path);
  unlink(unfinished.c_str());
  return failed;
}

}  // namespace ppmr
