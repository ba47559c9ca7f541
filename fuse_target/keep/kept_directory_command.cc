#include "fuse_target/keep/kept_directory_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "base/sync_directory.h"
#include "daemon/command_line/output.h"
#include "fuse_target/keep/keep_keys.h"
#include "fuse_target/keep/kept_directory.h"

namespace ppmr {
namespace {

struct KeptDirectoryCommand {
  std::string directory;  // the directory that the file contains
  std::string file;       // absolute path
  std::string name;       // the name in the file
  std::string key_file;
  bool writes = false;
  bool ends_with_parent = false;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;

  int run() const;

 private:
  Status do_it() const;
  Status write(const KeepKeys& keys) const;
};

// Runs `work` with the rights of the user. This process has one thread.
template <typename Work>
auto as_user(const KeptDirectoryCommand& user, Work work) -> decltype(work()) {
  if (setgroups(user.groups.size(), user.groups.data()) != 0 || setegid(user.gid) != 0 ||
      seteuid(user.uid) != 0) {
    return system_failure("take the rights of", fmt::format("user {}", user.uid));
  }
  auto done = work();
  if (seteuid(0) != 0 || setegid(0) != 0 || setgroups(0, nullptr) != 0) {
    return system_failure("take back the rights of", "root");
  }
  return done;
}

Status KeptDirectoryCommand::write(const KeepKeys& keys) const {
  const auto made = as_user(*this, [&]() -> Result<UniqueFd> {
    UniqueFd created(open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!created) return system_failure("create", file);
    return created;
  });
  if (!made) return failure(made.error());
  Status written = write_kept_directory(directory, *made, file, name, keys.first());
  return as_user(*this, [&]() -> Status {
    if (written) return sync_directory(file.substr(0, file.rfind('/') + 1));
    unlink(file.c_str());
    return written;
  });
}

Status KeptDirectoryCommand::do_it() const {
  if (ends_with_parent) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!file.starts_with('/')) return failure(EINVAL, "not an absolute path: " + file);
  const auto keys = read_keep_keys(key_file);
  if (!keys) return failure(keys.error());
  if (writes) return write(***keys);
  auto opened = as_user(*this, [&]() -> Result<UniqueFd> {
    UniqueFd found(open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!found) return system_failure("open", file);
    return found;
  });
  if (!opened) return failure(opened.error());
  return read_kept_directory(std::move(*opened), file, name, (***keys).all(), directory);
}

int KeptDirectoryCommand::run() const {
  const Status done = do_it();
  if (done) return to_int(ExitCode::kSuccess);
  print_to(stderr, "{}\n", done.error().message);
  return to_int(ExitCode::kFailure);
}

}  // namespace

void add_kept_directory_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand("kept-directory")->group("");  // not in --help
  auto command = std::make_shared<KeptDirectoryCommand>();
  sub.add_option("DIRECTORY", command->directory)->required();
  sub.add_option("FILE", command->file)->required();
  sub.add_option("--name", command->name)->required();
  sub.add_option("--key-file", command->key_file)->required();
  sub.add_flag("--write", command->writes);
  sub.add_flag("--end-with-parent", command->ends_with_parent);
  sub.add_option("--uid", command->uid)->required();
  sub.add_option("--gid", command->gid)->required();
  sub.add_option("--group", command->groups)->allow_extra_args(false)->take_all();
  sub.callback([command, &exit_code] { exit_code = command->run(); });
}

}  // namespace ppmr
