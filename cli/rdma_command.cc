// `ppmr rdma run -- PROGRAM`: starts a program whose use of RDMA can be moved. LD_PRELOAD names the
// library, so the program and all programs that it starts load it.
#include "cli/rdma_command.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/exit_code.h"
#include "base/own_path.h"
#include "daemon/background/verbs_library_file.h"
#include "daemon/command_line/command_error.h"

namespace ppmr {
namespace {

int fail(const Error& error) {
  return report("rdma run", {ExitCode::kFailure, error.message}, false);
}

}  // namespace

Result<std::string> preload_with(const std::string& library, const char* before) {
  if (library.find_first_of(" :") != std::string::npos) {
    return failure(EINVAL, fmt::format("preload {}: the path has a space or a colon, which "
                                       "separate libraries; move the library elsewhere",
                                       library));
  }
  return before && *before ? library + ":" + before : library;
}

Status prepare_verbs_directory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return system_failure("create the directory of peers", directory);
  struct stat status;
  if (stat(directory.c_str(), &status) != 0)
    return system_failure("examine the directory of peers", directory);
  if (!S_ISDIR(status.st_mode))
    return failure(ENOTDIR,
                   fmt::format("use {} as the directory of peers: not a directory", directory));
  const bool is_own = status.st_uid == geteuid() || status.st_uid == 0;
  const bool others_write = status.st_mode & (S_IWGRP | S_IWOTH);
  if (!is_own || others_write) {
    return failure(EPERM, fmt::format("use {} as the directory of peers: other users may write "
                                      "there; choose one that only its user may write (chmod 700)",
                                      directory));
  }
  return {};
}

int RdmaRunCommand::run() const {
  const auto ppmr = own_path();
  if (!ppmr) return fail(ppmr.error());
  const auto library = find_verbs_library(std::filesystem::path(*ppmr).parent_path().string());
  if (!library) return fail(library.error());
  const auto preload = preload_with(*library, getenv("LD_PRELOAD"));
  if (!preload) return fail(preload.error());
  const std::string peers =
      directory.empty() ? fmt::format("/dev/shm/ppmr-verbs-{}", geteuid()) : directory;
  if (const Status prepared = prepare_verbs_directory(peers); !prepared)
    return fail(prepared.error());
  std::error_code error;
  const auto absolute = std::filesystem::absolute(peers, error);
  if (error) return fail({error.value(), "resolve " + peers + ": " + error.message()});
  setenv("LD_PRELOAD", preload->c_str(), 1);
  setenv("PPMR_VERBS_DIRECTORY", absolute.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : program) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  return fail({errno, fmt::format("start {}: {}", program[0], std::strerror(errno))});
}

}  // namespace ppmr
