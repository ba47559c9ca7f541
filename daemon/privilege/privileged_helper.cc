#include "daemon/privilege/privileged_helper.h"

#include <sys/socket.h>

#include <algorithm>

#include "base/spawn.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr std::string_view kHelper = "the privileged helper";
constexpr int kHelpersSocket = 3;  // the descriptor's number in the helper

}  // namespace

Result<std::shared_ptr<PrivilegedHelper>> PrivilegedHelper::start(const HelperOptions& options) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("create a socket pair for", "the privileged helper");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::string> words = {
      "ppmr", "privileged-helper", "--fd=" + std::to_string(kHelpersSocket),
      "--mountpoint=" + options.mountpoint, "--control-socket=" + options.control_socket};
  if (!options.spill_directory.empty()) words.push_back("--spill-dir=" + options.spill_directory);
  if (!options.keep_directory.empty()) words.push_back("--keep-dir=" + options.keep_directory);
  std::vector<std::string> files = options.read_files;
  for (const std::string& file : files) words.push_back("--read-file=" + file);
  if (!options.append_file.empty()) {
    words.push_back("--append-file=" + options.append_file);
    files.push_back(options.append_file);
  }
  if (options.allow_other) words.push_back("--allow-other");
  if (!options.connect_to.empty()) words.push_back("--connect-to=" + options.connect_to);
  if (options.loopback_only) words.push_back("--loopback-only");
  if (options.near_target) words.push_back("--near-target");
  if (options.background) words.push_back("--background");
  for (const std::string& word : options.settle) words.push_back("--settle=" + word);
  for (const std::string& word : options.epochs) words.push_back("--epochs=" + word);
  if (!options.agent.empty()) words.push_back("--");
  words.insert(words.end(), options.agent.begin(), options.agent.end());
  auto pid = spawn({.argv = std::move(words),
                    .program = "/proc/self/exe",
                    .files = {{theirs.get(), kHelpersSocket}}});
  if (!pid) return failure(pid.error());
  return std::make_shared<PrivilegedHelper>(std::move(ours), std::move(files));
}

Result<FuseChannel> PrivilegedHelper::mount() {
  auto answer = ask(HelperOperation::kMount, 0, "", 1);
  if (!answer) return failure(answer.error());
  return FuseChannel{std::move(answer->descriptors[0]), [this] {
                       if (auto done = ask(HelperOperation::kUnmount); !done) {
                         spdlog::error("{}", done.error().message);
                       }
                     }};
}

Result<UniqueFd> PrivilegedHelper::start_agent(const std::string& peer) {
  auto answer = ask(HelperOperation::kStartAgent, 0, peer, 1);
  if (!answer) return failure(answer.error());
  return std::move(answer->descriptors[0]);
}

Result<UnnamedFile> PrivilegedHelper::create_spill_file() {
  auto answer = ask(HelperOperation::kCreateSpillFile, 0, "", 2);
  if (!answer) return failure(answer.error());
  return UnnamedFile{std::move(answer->descriptors[0]), std::move(answer->descriptors[1])};
}

Result<UniqueFd> PrivilegedHelper::open_again(const std::string& path) {
  const auto found = std::find(files_.begin(), files_.end(), path);
  if (found == files_.end())
    return failure(
        EPERM, "open " + path +
                   ": not one of the files named when the daemon was started: restart the daemon");
  auto answer =
      ask(HelperOperation::kOpenAgain, static_cast<int32_t>(found - files_.begin()), "", 1);
  if (!answer) return failure(answer.error());
  return std::move(answer->descriptors[0]);
}

Result<UniqueFd> PrivilegedHelper::dial(size_t number) {
  return ask_for_file(HelperOperation::kDial, static_cast<int32_t>(number));
}

Result<UniqueFd> PrivilegedHelper::open_kept_directory() {
  return ask_for_file(HelperOperation::kOpenKeptDirectory);
}

Result<UniqueFd> PrivilegedHelper::create_kept(int32_t number) {
  return ask_for_file(HelperOperation::kCreateKept, number);
}

Result<UniqueFd> PrivilegedHelper::publish_kept(int32_t number) {
  return ask_for_file(HelperOperation::kPublishKept, number);
}

Result<UniqueFd> PrivilegedHelper::open_kept(int32_t number) {
  return ask_for_file(HelperOperation::kOpenKept, number);
}

Result<UniqueFd> PrivilegedHelper::remove_kept(int32_t number) {
  return ask_for_file(HelperOperation::kRemoveKept, number);
}

Result<UniqueFd> PrivilegedHelper::ask_for_file(HelperOperation operation, int32_t number) {
  auto answer = ask(operation, number, "", 1);
  if (!answer) return failure(answer.error());
  return std::move(answer->descriptors[0]);
}

void PrivilegedHelper::remove_control_socket() {
  if (auto done = ask(HelperOperation::kRemoveControlSocket); !done) {
    spdlog::error("{}", done.error().message);
  }
}

bool PrivilegedHelper::is_dying(pid_t process) {
  const auto answer = ask(HelperOperation::kIsDying, process);
  return answer && answer->number != 0;
}

Result<PrivilegedHelper::Answer> PrivilegedHelper::ask(HelperOperation operation, int32_t number,
                                                       const std::string& text,
                                                       size_t descriptors) {
  HelperRequest request{.operation = operation, .number = number};
  if (text.size() > sizeof(request.text)) {
    return failure(ENAMETOOLONG, "request to the privileged helper: the text is too long");
  }
  request.text_bytes = static_cast<uint32_t>(text.size());
  std::copy(text.begin(), text.end(), request.text);
  Answer answer;
  Result<HelperReply> reply;
  {
    MutexLock lock(mutex_);
    if (Status sent = send_message(socket_.get(), request, kHelper); !sent) {
      return failure(sent.error());
    }
    reply = receive_message<HelperReply>(socket_.get(), kHelper, kHelperDescriptorsMax,
                                         &answer.descriptors);
  }
  if (!reply) return failure(reply.error());
  if (Status done = reply->status(kHelper); !done) return failure(done.error());
  if (answer.descriptors.size() != descriptors) {
    return failure(EPROTO,
                   "the privileged helper sent " + std::to_string(answer.descriptors.size()) +
                       " descriptors, not " + std::to_string(descriptors) +
                       ": the daemon may have too many open files: raise its limit (ulimit -n)");
  }
  answer.number = reply->number;
  return answer;
}

}  // namespace ppmr
