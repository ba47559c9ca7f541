#include "jobs/agent/node_epochs.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

#include "base/ended_child.h"
#include "base/json_message.h"
#include "base/line_socket.h"
#include "base/parse_json.h"
#include "base/spawn.h"
#include "daemon/control/endpoint_file.h"
#include "migration/protect/epoch_forward.h"
#include "migration/protect/part_epochs.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kCapturePatience{20'000};
constexpr milliseconds kAwaitPatience{500};
constexpr milliseconds kSendPatience{5'000};
constexpr milliseconds kReleasePatience{20'000};

constexpr const char* kHere = "here";
constexpr const char* kPartner = "partner";
constexpr const char* kForward = "forward";
constexpr std::array kSides = {kHere, kPartner, kForward};

std::string mount_name(const std::string& container, const char* side) {
  return container + "." + side;
}

}  // namespace

NodeEpochs::~NodeEpochs() = default;

// Kills the process. If it drives a CRIU at the moment, that CRIU then lets the node run.
NodeEpochs::Part::~Part() {
  if (pid <= 0) return;
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<std::shared_ptr<NodeEpochs::Part>> NodeEpochs::start(const std::string& container,
                                                            const std::string& partner) {
  auto here = NodeMount::open(options_, mount_name(container, kHere), host_);
  if (!here) return failure(here.error());
  std::optional<NodeMount> there;
  if (!partner.empty()) {
    auto opened = NodeMount::open(options_, mount_name(container, kPartner), partner);
    if (!opened) {
      return failure(opened.error().errno_value,
                     "the partner " + partner + ": " + opened.error().message);
    }
    there.emplace(std::move(*opened));
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("create a socket pair for ppmr part-epochs of", container);
  }
  auto part = std::make_shared<Part>(std::move(*here), std::move(there), partner);
  part->socket = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::string> argv = {options_.program, "part-epochs", "--container",
                                   container,        "--here",      part->here.path()};
  if (part->partner) argv.insert(argv.end(), {"--partner", part->partner->path()});
  argv.push_back("--");
  for (const std::string& option : job_node_criu_options()) argv.push_back(option);
  const auto pid = spawn({.argv = std::move(argv),
                          .files = {{theirs.get(), kLeaderSocket}},
                          .group = SpawnGroup::kOwn});
  if (!pid) return failure(pid.error());
  part->pid = *pid;
  return part;
}

Result<std::shared_ptr<NodeEpochs::Part>> NodeEpochs::find(const std::string& container) const {
  MutexLock lock(mutex_);
  const auto found = parts_.find(container);
  if (found == parts_.end()) return failure(ENOENT, "no epoch of " + container + " has begun");
  return found->second;
}

void NodeEpochs::end(const std::string& container) {
  std::shared_ptr<Part> ended;
  {
    MutexLock lock(mutex_);
    if (const auto found = parts_.find(container); found != parts_.end()) {
      ended = std::move(found->second);
      parts_.erase(found);
    }
  }
  if (ended) return;
  // Removes mounts that remain from an agent that was killed.
  for (const char* side : kSides) NodeMount::remove(options_, mount_name(container, side));
}

Status NodeEpochs::begin(const std::string& container, const EpochOrder& order) {
  std::shared_ptr<Part> part = find(container).value_or(nullptr);
  // Destroys the old part before start() makes a new one, because both use the same mount points.
  if (part && (has_ended(part->pid) || part->partner_host != order.partner)) part.reset();
  if (!part) {
    end(container);
    auto started = start(container, order.partner);
    if (!started) return failure(started.error());
    part = std::move(*started);
    MutexLock lock(mutex_);
    parts_[container] = part;
  }
  const json message = to_request(part_message::Epoch{order.number, order.oldest, order.hold});
  return write_line(part->socket.get(), message.dump(), Clock::now() + kSendPatience);
}

Result<part_message::Report> NodeEpochs::await_report(Part& part, uint64_t number,
                                                      const std::string& step,
                                                      milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  MutexLock lock(part.mutex);
  for (;;) {
    std::string line;
    const Status read =
        read_line(part.socket.get(), part.pending, line, part_message::kLineMaxBytes, deadline);
    if (!read) {
      return failure(read.error().errno_value,
                     std::string("receive a report of ppmr part-epochs: ") + read.error().message);
    }
    const auto report = read_fields<part_message::Report>(parse_json(line));
    if (!report) return failure(EPROTO, "ppmr part-epochs sent a malformed report: " + line);
    if (report->number != number) continue;  // about an epoch that was given up
    if (report->step == step) return *report;
    if (report->step == part_message::kFailed) return failure(ECANCELED, report->error);
  }
}

Status NodeEpochs::freeze(const std::string& container, uint64_t number) {
  const auto part = find(container);
  if (!part) return failure(part.error());
  const json message = to_request(part_message::Freeze{number});
  Status sent = write_line((*part)->socket.get(), message.dump(), Clock::now() + kSendPatience);
  if (!sent) return sent;
  const auto captured = await_report(**part, number, part_message::kCaptured, kCapturePatience);
  return captured ? Status{} : failure(captured.error());
}

Status NodeEpochs::go(const std::string& container, uint64_t number, bool keep) {
  const auto part = find(container);
  if (!part) return failure(part.error());
  const json message = to_request(part_message::Go{number, keep});
  return write_line((*part)->socket.get(), message.dump(), Clock::now() + kSendPatience);
}

Status NodeEpochs::hold(const std::string& container, uint64_t number) const {
  const auto part = find(container);
  if (!part) return failure(part.error());
  const json message = to_request(part_message::Hold{number, true});
  return write_line((*part)->socket.get(), message.dump(), Clock::now() + kSendPatience);
}

Status NodeEpochs::let_go(const std::string& container, uint64_t number) const {
  const auto part = find(container);
  if (!part) return {};
  const json message = to_request(part_message::Hold{number, false});
  Status sent = write_line((*part)->socket.get(), message.dump(), Clock::now() + kSendPatience);
  if (!sent) return sent;
  const auto gone = await_report(**part, number, part_message::kReleased, kReleasePatience);
  // If the epoch has failed, the node runs on already.
  if (gone || gone.error().errno_value == ECANCELED) return {};
  return failure(gone.error());
}

Result<std::optional<part_message::Report>> NodeEpochs::await(const std::string& container,
                                                              uint64_t number,
                                                              const std::string& step) {
  const auto part = find(container);
  if (!part) return failure(part.error());
  auto report = await_report(**part, number, step, kAwaitPatience);
  if (report) return std::move(*report);
  if (report.error().errno_value == ETIMEDOUT) return std::nullopt;
  return failure(report.error());
}

Status NodeEpochs::forward(const std::string& container, uint64_t number,
                           const std::string& to) const {
  const auto mount = NodeMount::open(options_, mount_name(container, kForward), to);
  if (!mount) return failure(mount.error());
  const auto found = find_mount(mount->path());
  if (!found) return failure(found.error());
  const auto endpoint = read_endpoint(found->mount.source);
  if (!endpoint) return failure(endpoint.error());
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  const auto sent = forward_epoch(*epochs, container, {found->mount, *endpoint},
                                  {.number = number, .oldest = number});
  return sent ? Status{} : failure(sent.error());
}

}  // namespace ppmr
