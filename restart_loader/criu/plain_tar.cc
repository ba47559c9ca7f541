#include "restart_loader/criu/plain_tar.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "base/own_path.h"
#include "restart_loader/criu/files_apart.h"
#include "restart_loader/criu/shell_script.h"

namespace ppmr {

Status put_plain_tar_in_path(const std::string& work_directory) {
  const std::string directory = work_directory + "/tools";
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("create", directory);
  }
  const char* const inherited = std::getenv("PATH");
  std::string path = inherited != nullptr ? inherited : "/usr/sbin:/usr/bin:/sbin:/bin";
  // The script must not find itself.
  if (path.starts_with(directory + ":")) path.erase(0, directory.size() + 1);
  // If the ppmr binary was replaced while it runs, CRIU can still dump and restore everything
  // except these files.
  const auto ppmr = own_path();
  const std::string of_ppmr =
      ppmr ? shell_quoted(*ppmr)
           : fmt::format("echo {} >&2; exit 1; :", shell_quoted(ppmr.error().message));
  const std::string work = shell_quoted(work_directory);
  const auto script = write_script(
      directory + "/tar", fmt::format("#!/bin/sh\n"
                                      "PATH={}\n"
                                      "if [ -e {}/{} ] || [ -e {}/{} ]; then\n"
                                      "  {} tar-of-criu --work-dir {} -- \"$@\"\n"
                                      "  code=$?\n"
                                      "  [ $code = {} ] || exit $code\n"
                                      "fi\n"
                                      "for word; do\n"
                                      "  shift\n"
                                      "  [ \"$word\" = --gzip ] || set -- \"$@\" \"$word\"\n"
                                      "done\n"
                                      "exec tar \"$@\"\n",
                                      shell_quoted(path), work, kFilesApart, work, kFilledTmpfs,
                                      of_ppmr, work, TarOfCriu::kRunTar));
  if (!script) return failure(script.error());
  if (setenv("PATH", (directory + ":" + path).c_str(), 1) != 0) {
    return system_failure("set the environment variable", "PATH");
  }
  return {};
}

}  // namespace ppmr
