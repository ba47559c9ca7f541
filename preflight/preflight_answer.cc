// The target's part of the preflight. The request comes from a peer, so this part bounds and
// validates it. The answer reveals no more than necessary (whether a file is the same, not its
// content).
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/unique_fd.h"
#include "mount/mount_table.h"
#include "preflight/file_digest.h"
#include "preflight/preflight.h"
#include "preflight/preflight_wire.h"
#include "processes/proc_files.h"
#include "processes/process_identity.h"
#include "restart_loader/criu/cpu_check.h"
#include "restart_loader/criu/criu_process.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr size_t kPidsMax = 100'000;
constexpr size_t kFilesMax = 100'000;
constexpr size_t kSocketsMax = 100'000;
constexpr size_t kContainersMax = 1000;
constexpr size_t kPathMaxBytes = 4096;
constexpr uint64_t kReadMaxBytes = 4ULL << 30;  // bytes that one request may read for all digests

Status check(const PreflightQuestions& questions) {
  if (questions.pids.size() > kPidsMax || questions.processes.size() > kPidsMax ||
      questions.files.size() > kFilesMax || questions.addresses.size() > kSocketsMax ||
      questions.listeners.size() > kSocketsMax || questions.containers.size() > kContainersMax)
    return failure(E2BIG, "invalid request: too many pids, files, sockets or containers");
  for (const FileFact& file : questions.files) {
    if (!file.path.starts_with('/') || file.path.size() > kPathMaxBytes ||
        file.path.find('\0') != std::string::npos)
      return failure(EINVAL, "invalid request: not an absolute path: " + file.path.substr(0, 100));
  }
  return {};
}

// Throws json::exception.
void read_path_bytes(const json& files, PreflightQuestions& questions) {
  for (size_t i = 0; i < questions.files.size(); ++i) {
    const auto digits = files.at(i).value(kPathBytes, std::string());
    if (digits.empty() || digits.size() % 2 != 0 || digits.size() > 2 * kPathMaxBytes) continue;
    std::string path;
    for (size_t at = 0; at < digits.size(); at += 2) {
      unsigned byte = 0;
      const char* const end = digits.data() + at + 2;
      if (std::from_chars(digits.data() + at, end, byte, 16).ptr != end) return;
      path += static_cast<char>(byte);
    }
    questions.files[i].path = path;
  }
}

std::string type_of(mode_t mode) {
  if (S_ISREG(mode)) return "file";
  if (S_ISDIR(mode)) return "directory";
  if (S_ISFIFO(mode)) return "fifo";
  return "other";
}

bool is_below(const std::string& path, const std::string& directory) {
  return path == directory || path.starts_with(directory + "/");
}

class FileComparison {
 public:
  explicit FileComparison(const std::string& boot_id_of_source)
      : same_kernel_(!boot_id_of_source.empty() && boot_id_of_source == read_boot_id()) {
    if (auto mounts = read_ppmr_mounts()) ppmr_mounts_ = std::move(*mounts);
  }

  FileVerdict compare(const FileFact& expected) {
    // Does not read in a ppmr mount: the mount's daemon, which may be blocked, would have to serve
    // the read.
    for (const MountEntry& mount : ppmr_mounts_) {
      if (is_below(expected.path, mount.mountpoint) && expected.path != mount.mountpoint)
        return FileVerdict::kMissing;
    }
    // Opening with O_PATH has no side effect on a FIFO, a device or a file lease (fcntl(2)).
    const UniqueFd fd(open(expected.path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat found {};
    if (!fd || fstat(fd.get(), &found) != 0) return FileVerdict::kMissing;
    if (type_of(found.st_mode) != expected.type) return FileVerdict::kOtherType;
    if (is_same_file(expected, found, fd.get())) return FileVerdict::kShared;
    if (expected.type != "file") return FileVerdict::kSame;
    if ((found.st_mode & 07777) != expected.mode) return FileVerdict::kOtherMode;
    const auto size = static_cast<uint64_t>(found.st_size);
    if (size < expected.size_bytes) return FileVerdict::kShorter;
    if (size > expected.size_bytes) return FileVerdict::kLonger;
    return compare_content(expected, found);
  }

 private:
  // Equal identifiers alone prove nothing: the local disks of cloned machines have equal
  // identifiers, too. So the file system must also be a network file system, or both nodes must
  // share a kernel.
  bool is_same_file(const FileFact& expected, const struct stat& found, int fd) const {
    return found.st_ino == expected.inode && !expected.filesystem_id.empty() &&
           filesystem_id_of(fd) == expected.filesystem_id &&
           (same_kernel_ || is_network_filesystem(expected.filesystem));
  }

  FileVerdict compare_content(const FileFact& expected, const struct stat& found) {
    if (expected.digest.empty() && expected.build_id.empty()) {
      const int64_t modified = found.st_mtim.tv_sec * 1'000'000'000LL + found.st_mtim.tv_nsec;
      return modified == expected.modified_ns ? FileVerdict::kSame : FileVerdict::kUnchecked;
    }
    const UniqueFd fd(open(expected.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat opened {};
    if (!fd || fstat(fd.get(), &opened) != 0 || !S_ISREG(opened.st_mode))
      return FileVerdict::kUnchecked;
    if (!expected.digest.empty()) {
      const uint64_t size = expected.size_bytes;
      if (size > kDigestedSizeMaxBytes || size > kReadMaxBytes - read_bytes_)
        return FileVerdict::kUnchecked;
      read_bytes_ += size;
      const auto digest = digest_of(fd.get(), size, expected.path);
      if (!digest) return FileVerdict::kUnchecked;
      return *digest == expected.digest ? FileVerdict::kSame : FileVerdict::kOtherContent;
    }
    return build_id_of(fd.get()) == expected.build_id ? FileVerdict::kSame
                                                      : FileVerdict::kOtherContent;
  }

  const bool same_kernel_;
  std::vector<MountEntry> ppmr_mounts_;
  uint64_t read_bytes_ = 0;
};

std::set<std::string> addresses_here() {
  std::set<std::string> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (entry->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr, text,
                sizeof(text));
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr, text,
                sizeof(text));
    }
    addresses.insert(text);
  }
  return addresses;
}

// Returns whether the node has the address. A node with 127.0.0.1 has all addresses of 127.0.0.0/8.
bool is_here(const std::set<std::string>& addresses, const std::string& address) {
  return addresses.contains(address) ||
         (address.starts_with("127.") && addresses.contains("127.0.0.1"));
}

bool is_any(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

// A pid is also in use as long as a process belongs to the group or session that it began.
std::vector<pid_t> find_taken_pids(const std::vector<pid_t>& wanted) {
  if (wanted.empty()) return {};
  std::set<pid_t> begun;
  if (const auto processes = read_all_processes()) {
    for (const ProcessStat& process : *processes) begun.insert({process.group, process.session});
  }
  std::vector<pid_t> taken;
  for (const pid_t pid : wanted) {
    // Zombies and threads also occupy a pid, and /proc resolves both.
    const bool exists = access(fmt::format("/proc/{}", pid).c_str(), F_OK) == 0;
    if (exists || begun.contains(pid)) taken.push_back(pid);
  }
  return taken;
}

bool is_taken(const std::vector<InternetSocket>& sockets, const ListenerQuestion& wanted) {
  return std::any_of(sockets.begin(), sockets.end(), [&](const InternetSocket& socket) {
    if (socket.protocol != wanted.protocol || socket.local_port != wanted.port) return false;
    if (wanted.protocol == "tcp" && !socket.listens()) return false;
    return socket.local_address == wanted.address || is_any(socket.local_address) ||
           is_any(wanted.address);
  });
}

PreflightAnswers answer(const PreflightQuestions& questions, const TargetContext& context,
                        CriuAnswers& criu) {
  PreflightAnswers answers;
  answers.node = gather_node_facts(criu);
  answers.node.store_free_bytes = context.store_free_bytes;
  answers.drained_mount = context.drained_mount;
  if (!questions.processor.empty()) {
    const Status& checked = criu.check_processor(questions.processor);
    // Other errors than ENOTSUP (another architecture, a broken CRIU) have their own findings.
    if (!checked && checked.error().errno_value == ENOTSUP) {
      answers.processor_problem = checked.error().message;
    }
  }
  const Status policy = check_announced(context.restart_policy, questions.processes);
  if (!policy) answers.policy_problem = policy.error().message;
  answers.pids_taken = find_taken_pids(questions.pids);
  FileComparison comparison(questions.boot_id);
  for (const FileFact& file : questions.files) answers.files.push_back(comparison.compare(file));
  const std::set<std::string> addresses = addresses_here();
  for (const std::string& address : questions.addresses) {
    if (!is_here(addresses, address)) answers.addresses_missing.push_back(address);
  }
  if (questions.listeners.empty()) return answers;  // listing the sockets takes milliseconds
  if (const auto sockets = read_internet_sockets(getpid())) {
    for (const ListenerQuestion& listener : questions.listeners) {
      if (is_taken(*sockets, listener)) answers.listeners_taken.push_back(listener);
    }
  }
  return answers;
}

Status answer_container_questions(const PreflightQuestions& questions, PreflightAnswers& answers) {
  for (const ContainerQuestion& question : questions.containers) {
    auto answer = answer_question(question);
    if (!answer) return failure(answer.error());
    answers.containers.push_back(std::move(*answer));
  }
  return {};
}

json refuse(const std::string& why) { return {{"ok", false}, {"error", why}}; }

}  // namespace

Result<PreflightQuestions> parse_questions(const PreflightRequest& request) {
  if (request.version != kPreflightVersion)
    return failure(EPROTO, fmt::format("this ppmr answers questions of version {}, not {}: install "
                                       "the same ppmr on both nodes",
                                       kPreflightVersion, request.version));
  try {
    auto questions = request.questions.get<PreflightQuestions>();
    read_path_bytes(request.questions.at("files"), questions);
    if (Status checked = check(questions); !checked) return failure(checked.error());
    return questions;
  } catch (const json::exception& error) {
    return failure(EPROTO,
                   std::string("cannot parse the request (install the same ppmr on both nodes): ") +
                       error.what());
  }
}

json answer_preflight(const PreflightRequest& request, const TargetContext& context,
                      CriuAnswers& criu) {
  const auto questions = parse_questions(request);
  if (!questions) return refuse(questions.error().message);
  PreflightAnswers answers = answer(*questions, context, criu);
  if (Status answered = answer_container_questions(*questions, answers); !answered)
    return refuse(answered.error().message);
  return {{"ok", true}, {"answers", answers}};
}

}  // namespace ppmr
