// Who takes part: `ppmr job run` asks the agent of its host, the job's home, for job nodes. The
// home asks the agents of the job's hosts to make them. A request to evacuate a host reaches that
// host's agent; it asks the home for a spare, has the spare prepare, moves the node, and reports
// the result.
//
// After a crash of an agent the next one reads the records, finishes what was under way, and asks
// the homes where its nodes belong. So a lost request leaves nothing behind for ever.
#include "jobs/agent/job_agent.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <set>

#include "restart_loader/criu/run_command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTendInterval{1};
constexpr int kOrphanRounds = 10;  // of tending, between two checks
constexpr std::chrono::seconds kTargetPatience{60};
constexpr std::chrono::milliseconds kPlacePatience{10'000};

Status make_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return system_failure("create", path);
  return {};
}

}  // namespace

JobAgent::JobAgent(JobAgentOptions options, RecordFiles home_records, RecordFiles node_records)
    : options_(std::move(options)),
      home_(options_.home, std::move(home_records)),
      nodes_(options_.nodes, std::move(node_records)) {}

Result<std::unique_ptr<JobAgent>> JobAgent::create(JobAgentOptions options) {
  const std::string& directory = options.directory;
  options.nodes.directory = directory + "/nodes";
  options.evacuation.mounts = directory + "/out";
  for (const std::string& path :
       {directory, options.nodes.directory, options.evacuation.mounts, directory + "/in"}) {
    if (Status made = make_directory(path); !made) return failure(made.error());
  }
  // Protects all that is below.
  if (chmod(directory.c_str(), 0700) != 0) return system_failure("chmod 0700", directory);
  auto home_records = RecordFiles::open(directory + "/jobs");
  if (!home_records) return failure(home_records.error());
  auto node_records = RecordFiles::open(directory + "/records");
  if (!node_records) return failure(node_records.error());
  std::unique_ptr<JobAgent> agent(
      new JobAgent(std::move(options), std::move(*home_records), std::move(*node_records)));

  ControlServerOptions control;
  control.public_path = agent->options_.socket;
  control.clients_per_user_max = 32;
  auto users = ControlServer::create(control);
  if (!users) return failure(users.error());
  agent->users_ = std::move(*users);
  if (Status started = agent->start_target(); !started) return failure(started.error());
  auto peers = PeerServer::create(
      agent->options_.home.peers.credentials,
      fmt::format("0.0.0.0:{}", agent->options_.home.peers.port),
      [raw = agent.get()](const json& request) { return raw->answer_peer(request); });
  if (!peers) return failure(peers.error());
  agent->peers_ = std::move(*peers);
  return agent;
}

JobAgent::~JobAgent() = default;

// The target outlives the agent: it may be restoring a job node.
Status JobAgent::start_target() const {
  const std::string mount = options_.directory + "/in";
  auto status = run_command({options_.evacuation.program, "status", mount}, kTargetPatience);
  if (!status) return failure(status.error());
  if (status->succeeded) return {};
  umount2(mount.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);  // of a target that was killed
  std::vector<std::string> argv = {options_.evacuation.program,
                                   "target",
                                   mount,
                                   "--listen",
                                   fmt::format("0.0.0.0:{}", options_.evacuation.target_port),
                                   "--allow-restart",
                                   "--state-dir",
                                   options_.evacuation.state_directory};
  for (const auto& words :
       {credential_words(options_.evacuation.credentials), options_.target_options}) {
    argv.insert(argv.end(), words.begin(), words.end());
  }
  auto started = run_successfully(argv, kTargetPatience);
  if (!started) return failure(started.error());
  return {};
}

void JobAgent::run() {
  users_->serve([this](const json& request, const ControlClient& client, UniqueFd& descriptor) {
    return answer_user(request, client, descriptor);
  });
  for (int round = 0;; ++round) {
    {
      std::unique_lock lock(mutex_);
      stopping_.wait_for(lock, kTendInterval, [this] { return stopped_; });
      if (stopped_) return;
    }
    home_.tend();
    finish_moves();
    if (round % kOrphanRounds != 0) continue;
    remove_orphans();
    if (Status started = start_target(); !started) spdlog::error("{}", started.error().message);
  }
}

void JobAgent::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  stopping_.notify_all();
}

// Moves that an earlier agent began, or whose result the home has not acknowledged.
void JobAgent::finish_moves() {
  for (const HostNode& node : nodes_.list()) {
    if (node.moving_to.empty()) continue;
    const auto claim = nodes_.claim(node.spec.container());
    if (!claim) continue;
    const auto now = nodes_.find(node.spec.container());
    if (!now || now->moving_to.empty()) continue;
    const MoveReport report = move_result(options_.evacuation, *now);
    if (report.result == MoveResult::kOpen) continue;
    if (Status concluded = conclude_move(*now, report, false); !concluded) {
      spdlog::warn("{}: {}", node.spec.container(), concluded.error().message);
    }
  }
}

// Removes nodes that, according to their home, do not belong here.
void JobAgent::remove_orphans() {
  std::map<std::string, Clock::time_point> answered;
  std::set<std::string> silent;
  for (const HostNode& node : nodes_.list()) {
    const std::string& home = node.spec.home;
    const auto earlier = home_answered_.find(home);
    answered.emplace(home, earlier != home_answered_.end() ? earlier->second : Clock::now());
    if (!node.moving_to.empty() || silent.contains(home)) continue;
    auto place = ask_peer(options_.home.peers, home,
                          {{"op", "place"}, {"job", node.spec.job}, {"index", node.spec.index}},
                          kPlacePatience);
    const bool over = !place && place.error().errno_value == ENOENT;
    bool orphan = over;
    if (place) {
      const bool arrived = place->value("host", "") == options_.host;
      if (arrived && node.expected) (void)nodes_.note_arrival(node.spec.container());
      orphan = !arrived && place->value("moving_to", "") != options_.host;
    }
    if (place || over) {
      answered[home] = Clock::now();
    } else {
      silent.insert(home);  // ask it for one node only, as each question may take long
      orphan = Clock::now() - answered[home] > options_.orphan_timeout;
    }
    if (!orphan) continue;
    spdlog::info("{} does not belong here any more: {}", node.spec.container(),
                 place ? "it is on host " + place->value("host", "") : place.error().message);
    if (Status removed = nodes_.remove(node.spec.container()); !removed) {
      spdlog::warn("{}", removed.error().message);
    }
  }
  home_answered_ = std::move(answered);
}

}  // namespace ppmr
