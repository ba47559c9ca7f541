#include "jobs/agent/suspension_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/parse_json.h"
#include "base/sync_directory.h"
#include "base/whole_file.h"
#include "base/without_exceptions.h"
#include "rdma_stream/connection/secret_file.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kFilePatience{60};
constexpr const char* kComplete = "job.kept";
constexpr const char* kContents = "/job.json";
// The name of the contents of the job's file. A node's file has another name inside, so that one
// cannot be read in place of the other.
constexpr const char* kJobName = "suspended-job";
constexpr size_t kClaimMaxBytes = 500;

std::string part_file(const std::string& suspension) { return suspension + "-job.part"; }
std::string claim_file(const std::string& suspension) { return suspension + ".resumed"; }

// Gives this thread the user's rights to files. The kernel keeps these IDs for each thread. This
// function makes the system calls itself, because the C library would change all threads. The
// thread ends after its work, so it need not get root's rights back.
Status take_rights(const JobUser& user) {
  if (syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0) {
    return system_failure("take the groups of", fmt::format("user {}", user.uid));
  }
  (void)setfsgid(user.gid);
  (void)setfsuid(user.uid);
  // Both functions return the previous ID, so the second call of each shows whether the first one
  // has succeeded.
  const bool is_taken = static_cast<gid_t>(setfsgid(user.gid)) == user.gid &&
                        static_cast<uid_t>(setfsuid(user.uid)) == user.uid;
  if (is_taken) return {};
  return failure(EPERM, fmt::format("take the rights of user {} for its files: not permitted (does "
                                    "ppmr job agent run as root?)",
                                    user.uid));
}

// Returns whether the file exists. Does not use access(2), which checks with the process's real
// IDs. Errors: those of lstat(2) other than ENOENT, because then the file may exist.
Result<bool> is_there(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT) return false;
  return system_failure("look for", path);
}

// Returns the first line of the file, at most kClaimMaxBytes. Does not block or fail, because users
// may have put any kind of file there.
std::string first_line(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string text(kClaimMaxBytes, '\0');
  const ssize_t count = file ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text.substr(0, text.find('\n'));
}

// Owns a directory, and removes it with its files.
class WorkPlace {
 public:
  explicit WorkPlace(std::string path) : path_(std::move(path)) { clear(); }
  ~WorkPlace() { clear(); }
  WorkPlace(const WorkPlace&) = delete;
  WorkPlace& operator=(const WorkPlace&) = delete;
  const std::string& path() const { return path_; }

 private:
  void clear() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string path_;
};

}  // namespace

Result<std::string> suspension_key_id(const SuspensionOptions& options) {
  if (options.key_file.empty()) {
    return failure(ENOKEY,
                   "suspended jobs are encrypted with a key that the administrator names: start "
                   "ppmr job agent with --keep-key on all hosts");
  }
  auto keys = read_key_file(options.key_file);
  if (!keys) return failure(keys.error().errno_value, "--keep-key: " + keys.error().message);
  std::string id = key_id(keys->front());
  explicit_bzero(keys->data(), keys->size() * sizeof(SharedKey));
  return id;
}

Status with_rights_of(const JobUser& user, const std::function<Status()>& work) {
  Status done;
  std::thread([&] {
    done = take_rights(user);
    if (done) done = without_exceptions(work);
  }).join();
  return done;
}

std::string node_file(const std::string& suspension, unsigned index) {
  return fmt::format("{}-node-{}", suspension, index);
}

std::vector<std::string> kept_directory_command(const SuspensionOptions& options,
                                                const JobUser& user, KeptDirection direction,
                                                const std::string& contents,
                                                const std::string& directory,
                                                const std::string& name) {
  std::vector<std::string> argv = {options.program, "kept-directory",
                                   contents,        directory + "/" + name + ".kept",
                                   "--name",        name,
                                   "--key-file",    options.key_file,
                                   "--uid",         std::to_string(user.uid),
                                   "--gid",         std::to_string(user.gid)};
  for (const gid_t group : user.groups) {
    argv.insert(argv.end(), {"--group", std::to_string(group)});
  }
  if (direction == KeptDirection::kWrite) argv.emplace_back("--write");
  return argv;
}

Status SuspensionFiles::run(KeptDirection direction, const std::string& contents,
                            const std::string& file, const std::string& name) const {
  std::vector<std::string> argv =
      kept_directory_command(options_, user_, direction, contents, directory_, name);
  argv[3] = path(file);
  const auto done = run_command(argv, kFilePatience);
  if (!done) return failure(done.error());
  if (done->succeeded) return {};
  std::string text = done->text.empty() ? "ppmr kept-directory " + done->ending : done->text;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return failure(EIO, text);
}

Status SuspensionFiles::prepare() const {
  if (!directory_.starts_with('/')) {
    return failure(EINVAL, "'" + directory_ + "' is not the absolute path of a directory");
  }
  if (const auto key = suspension_key_id(options_); !key) return failure(key.error());
  bool is_complete = false;
  const Status made = with_rights_of(user_, [&]() -> Status {
    if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
      return system_failure("create", directory_);
    }
    const auto there = is_there(path(kComplete));
    if (!there) return failure(there.error());
    is_complete = *there;
    return {};
  });
  if (!made || !is_complete) return made;
  const auto earlier = read();
  if (!earlier) {
    return failure(EEXIST, fmt::format("{} has a suspended job already ({}): choose another "
                                       "directory, or remove it",
                                       directory_, earlier.error().message));
  }
  bool has_gone_on = false;
  const Status looked = with_rights_of(user_, [&]() -> Status {
    const auto claimed = is_there(path(claim_file(earlier->suspension)));
    if (!claimed) return failure(claimed.error());
    has_gone_on = *claimed;
    return {};
  });
  if (!looked || has_gone_on) return looked;
  return failure(EEXIST,
                 fmt::format("{} has job {}, which is suspended and has not gone on: choose "
                             "another directory, or remove it",
                             directory_, earlier->job));
}

Status SuspensionFiles::write(const SuspendedJob& job) const {
  const WorkPlace work(options_.work + "/" + job.suspension);
  if (mkdir(work.path().c_str(), 0700) != 0) return system_failure("create", work.path());
  std::ofstream file(work.path() + kContents);
  file << to_json(job).dump();
  file.close();
  if (!file) return system_failure("write", work.path() + kContents);
  return run(KeptDirection::kWrite, work.path(), part_file(job.suspension), kJobName);
}

Status SuspensionFiles::publish(const std::string& suspension) const {
  return with_rights_of(user_, [&]() -> Status {
    const std::string from = path(part_file(suspension));
    if (rename(from.c_str(), path(kComplete).c_str()) != 0) return system_failure("rename", from);
    return sync_directory(directory_);
  });
}

Result<SuspendedJob> SuspensionFiles::read() const {
  if (const auto key = suspension_key_id(options_); !key) return failure(key.error());
  Status there = with_rights_of(user_, [&]() -> Status {
    const auto found = is_there(path(kComplete));
    if (!found) return failure(found.error());
    if (*found) return {};
    return failure(ENOENT, "there is no suspended job in " + directory_);
  });
  if (!there) return failure(there.error());
  char name[] = "/read-XXXXXX";
  std::string pattern = options_.work + name;
  if (mkdtemp(pattern.data()) == nullptr) return system_failure("create", pattern);
  const std::string contents = pattern + "/contents";
  const Status done = run(KeptDirection::kRead, contents, kComplete, kJobName);
  const auto text =
      done ? read_whole_file(contents + kContents) : Result<std::string>(failure(done.error()));
  const WorkPlace removed(pattern);
  if (!text) return failure(text.error());
  auto suspended = parse_suspended_job(parse_json(*text));
  if (suspended) return suspended;
  return failure(suspended.error().errno_value, directory_ + ": " + suspended.error().message);
}

void SuspensionFiles::remove_matching(
    const std::function<bool(const std::string& name)>& matches) const {
  (void)with_rights_of(user_, [&]() -> Status {
    std::error_code ignored;
    for (const auto& entry : list_directory(directory_).value_or(DirectoryEntries())) {
      const std::string name = entry.path().filename();
      // Files of users may be in the directory, too.
      const bool is_ours = name.size() > 16 && is_suspension_id(name.substr(0, 16)) &&
                           (name.substr(16).starts_with("-node-") ||
                            name.substr(16) == "-job.part" || name.substr(16) == ".resumed");
      if (is_ours && matches(name)) fs::remove(entry.path(), ignored);
    }
    return {};
  });
}

void SuspensionFiles::discard(const std::string& suspension) const {
  remove_matching([&](const std::string& name) { return name.starts_with(suspension); });
}

void SuspensionFiles::discard_others(const std::string& suspension) const {
  remove_matching([&](const std::string& name) { return !name.starts_with(suspension); });
}

Status SuspensionFiles::claim(const std::string& suspension, const std::string& by,
                              bool again) const {
  return with_rights_of(user_, [&]() -> Status {
    const std::string file = path(claim_file(suspension));
    if (again && unlink(file.c_str()) != 0 && errno != ENOENT) {
      return system_failure("remove the earlier claim", file);
    }
    Status claimed = write_whole_file(file, by, O_EXCL, 0600);
    if (!claimed && claimed.error().errno_value == EEXIST) {
      return failure(EALREADY,
                     fmt::format("resume the job in {}: it goes on already, or has ended: {}. If "
                                 "that run is certainly lost, use --again",
                                 directory_, first_line(file)));
    }
    if (!claimed) return claimed;
    claimed = sync_directory(directory_);
    // If the claim stayed, this suspension would count as resumed: a later one could replace it.
    if (!claimed) unlink(file.c_str());
    return claimed;
  });
}

void SuspensionFiles::give_back(const std::string& suspension) const {
  (void)with_rights_of(user_, [&]() -> Status {
    unlink(path(claim_file(suspension)).c_str());
    return {};
  });
}

}  // namespace ppmr
