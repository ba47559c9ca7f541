// How the agents work together: `ppmr job run` asks the agent of its host, the job's home, for job
// nodes. The home asks the agents of the job's hosts to make the nodes. A request to evacuate a
// host reaches that host's agent. This agent asks the home for a spare, asks the spare's agent to
// prepare, moves the node, and reports the result to the home.
//
// An agent that starts after a crash reads the records, finishes the moves under way, and asks the
// homes to which hosts its nodes belong. So no node remains after a lost request.
#include "jobs/agent/job_agent.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "mount/mount_table.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/run_command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTendInterval{1};
constexpr std::chrono::milliseconds kWatchInterval{250};  // see HomeJobs::watch_hosts()
constexpr unsigned kOrphanRounds = 10;  // rounds of run() between two checks
// The hosts of a large job take turns, so that the job's home gets about this many questions in one
// check. A home answers about a thousand questions per second and core.
constexpr size_t kQuestionsPerCheck = 1000;
constexpr std::chrono::seconds kTargetPatience{60};
constexpr std::chrono::milliseconds kTargetAnswerTimeout{2000};
constexpr std::chrono::milliseconds kPlacePatience{10'000};
constexpr std::chrono::seconds kReportPatience{5};

Status make_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return system_failure("create", path);
  return {};
}

void safely(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    // For example, there was no memory, or no thread could start. The caller tries again.
    spdlog::error("{}", error.what());
  }
}

}  // namespace

JobAgent::JobAgent(JobAgentOptions options, RecordFiles home_records, RecordFiles node_records,
                   RecordFiles pool_record)
    : options_(std::move(options)),
      home_(options_.home, std::move(home_records)),
      nodes_(options_.nodes, std::move(node_records)),
      epochs_(options_.evacuation, options_.host),
      pool_(std::move(pool_record)) {}

Result<std::unique_ptr<JobAgent>> JobAgent::create(JobAgentOptions options) {
  const std::string& directory = options.directory;
  options.nodes.directory = directory + "/nodes";
  options.evacuation.mounts = directory + "/out";
  options.home.suspension.work = directory + "/suspended";
  for (const std::string& path :
       {directory, options.nodes.directory, options.evacuation.mounts, directory + "/in",
        directory + "/hooks", options.home.suspension.work}) {
    if (Status made = make_directory(path); !made) return failure(made.error());
  }
  // This mode protects all files below the directory.
  if (chmod(directory.c_str(), 0700) != 0) return system_failure("chmod 0700", directory);
  auto home_records = RecordFiles::open(directory + "/jobs");
  if (!home_records) return failure(home_records.error());
  auto node_records = RecordFiles::open(directory + "/records");
  if (!node_records) return failure(node_records.error());
  // The record of the pool survives a restart of the host, unlike the records of jobs and nodes.
  std::error_code ignored;  // RecordFiles::open() reports the error
  std::filesystem::create_directories(options.evacuation.state_directory, ignored);
  auto pool_record = RecordFiles::open(options.evacuation.state_directory + "/pool");
  if (!pool_record) return failure(pool_record.error());
  options.home.ask = [peers = options.peers](const std::string& host, const json& request,
                                             std::chrono::milliseconds patience) {
    return ask_peer(peers, host, request, patience);
  };
  std::unique_ptr<JobAgent> agent(new JobAgent(std::move(options), std::move(*home_records),
                                               std::move(*node_records), std::move(*pool_record)));

  ControlServerOptions control;
  control.public_path = agent->options_.socket;
  control.clients_per_user_max = 8;
  control.request_max_bytes = 1 << 20;  // a request has the names of all hosts of a job
  auto users = ControlServer::create(control);
  if (!users) return failure(users.error());
  agent->users_ = std::move(*users);
  if (Status started = agent->start_target(); !started) return failure(started.error());
  auto peers = PeerServer::create(
      agent->options_.peers.credentials, fmt::format("0.0.0.0:{}", agent->options_.peers.port),
      [raw = agent.get()](const json& request) { return raw->answer_peer(request); },
      agent->options_.on_event);
  if (!peers) return failure(peers.error());
  agent->peers_ = std::move(*peers);
  if (Status served = agent->serve_metrics(); !served) return failure(served.error());
  return agent;
}

JobAgent::~JobAgent() = default;

Status JobAgent::serve_metrics() {
  if (options_.metrics_address.empty()) return {};
  auto listener = MetricsServer::listen(options_.metrics_address);
  if (!listener) return failure(listener.error());
  metrics_ = std::make_unique<JobMetrics>([this] {
    return JobNumbers{.home = home_.views(0),
                      .nodes_here = nodes_.list().size(),
                      .is_out = pool_.report().is_out_for(0),
                      .now_ns = unix_time_ns()};
  });
  auto server = MetricsServer::start(std::move(*listener), *metrics_);
  if (!server) return failure(server.error());
  metrics_server_ = std::move(*server);
  return {};
}

// Starts `ppmr target` unless it runs. The target outlives the agent, because it may be restoring a
// job node. A target that does not answer in time counts as running.
Status JobAgent::start_target() const {
  const std::string mount = target_mount();
  auto mounts = read_mounts();
  if (!mounts) return failure(mounts.error());
  for (const MountEntry& entry : *mounts) {
    if (entry.mountpoint != mount) continue;
    const auto answer = call(entry.source, to_request(request::Status{}), kTargetAnswerTimeout);
    const bool has_ended = !answer && (answer.error().errno_value == ECONNREFUSED ||
                                       answer.error().errno_value == ENOENT);
    if (!has_ended) return {};
    if (umount2(mount.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
      return system_failure("unmount what a killed ppmr target left at", mount);
    }
  }
  std::vector<std::string> argv = {options_.evacuation.program,
                                   "target",
                                   mount,
                                   "--listen",
                                   fmt::format("0.0.0.0:{}", options_.evacuation.target_port),
                                   "--allow-root-restart",  // a job has namespaces of its own
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
  users_->serve(
      [this](const json& request, const ControlClient& client, PassedDescriptors& passed) {
        return answer_user(request, client, passed.to_send);
      });
  // Each task has its own thread, so that a host that does not answer delays only one task.
  std::thread homes([this] {
    while (!wait(kTendInterval)) safely([this] { home_.tend(); });
  });
  std::thread protector([this] {
    while (!wait(kTendInterval)) safely([this] { home_.protect(); });
  });
  std::thread watcher([this] {
    while (!wait(kWatchInterval)) safely([this] { home_.watch_hosts(); });
  });
  std::thread tidier([this] {
    while (!wait(kTendInterval)) safely([this] { peers_->tidy(); });
  });
  std::thread hooks([this] {
    while (!wait(kTendInterval)) safely([this] { serve_hooks(); });
  });
  for (unsigned round = 0; !wait(kTendInterval); ++round) {
    safely([&] {
      finish_moves();
      if (round % kOrphanRounds != 0) return;
      remove_orphans(round / kOrphanRounds);
      remove_strays();
      if (Status started = start_target(); !started) spdlog::error("{}", started.error().message);
    });
  }
  homes.join();
  protector.join();
  watcher.join();
  home_.await_protection();
  hooks.join();
  tidier.join();
}

// Waits for at most `time`. Returns whether the agent must stop.
bool JobAgent::wait(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return stopping_.wait_for(mutex_, time, [this]() PPMR_REQUIRES(mutex_) { return stopped_; });
}

void JobAgent::stop() {
  home_.stop_protection();
  MutexLock lock(mutex_);
  stopped_ = true;
  stopping_.notify_all();
}

// Finishes moves that an earlier agent began, or whose result the home has not acknowledged.
void JobAgent::finish_moves() {
  for (const HostNode& node : nodes_.list()) {
    if (node.moving_to.empty()) continue;
    const auto claim = nodes_.claim(node.spec.container());
    if (!claim) continue;
    const auto now = nodes_.find(node.spec.container());
    if (!now || now->moving_to.empty()) continue;
    const MoveReport report = move_result(options_.evacuation, *now);
    if (report.result == MoveResult::kOpen) continue;
    const auto concluded = conclude_move(*now, report, false);
    note_answer(node.spec.home, concluded ? nullptr : &concluded.error());
    if (!concluded) {
      spdlog::warn("{}: {}", node.spec.container(), concluded.error().message);
      if (is_orphaned(node.spec.home)) forget_move(*now);
    }
  }
}

void JobAgent::note_answer(const std::string& home, const Error* error) {
  // A name service that fails does not show that the home is lost.
  if (error == nullptr || contact_of(*error) == Contact::kUnknown) {
    silent_since_.erase(home);
  } else {
    silent_since_.emplace(home, Clock::now());
  }
}

bool JobAgent::is_orphaned(const std::string& home) const {
  const auto since = silent_since_.find(home);
  return since != silent_since_.end() && Clock::now() - since->second > options_.home.host_timeout;
}

void JobAgent::report_loss(const HostNode& node) {
  const auto now = nodes_.find(node.spec.container());
  const auto why = now ? nodes_.why_ended(*now) : Result<std::string>("");
  if (!why || why->empty()) return;
  spdlog::warn("{}: {}", node.spec.container(), *why);
  (void)ask_peer(
      options_.peers, node.spec.home,
      to_request(host_request::Lost{
          .job = node.spec.job, .index = node.spec.index, .asker = options_.host, .why = *why}),
      kPlacePatience);
}

// Reports to the home that the node has arrived. Normally the host that the node left reports the
// move within seconds. If that host has died or was restarted, its agent has no record of the move,
// and the home would wait for ever.
void JobAgent::report_arrival(const HostNode& node, const std::string& from) {
  if (!has_arrived(options_.evacuation, node, kReportPatience)) return;
  spdlog::info("{} runs here; host {} has not reported it", node.spec.container(), from);
  auto answer =
      ask_peer(options_.peers, node.spec.home,
               to_request(host_request::Settle{
                   .job = node.spec.job, .index = node.spec.index, .from = from, .moved = true}),
               kPlacePatience);
  if (!answer) spdlog::warn("{}: {}", node.spec.container(), answer.error().message);
}

// Removes a node that moves, because its job has lost its home for good. The host to which the node
// moves removes its part in the same way.
void JobAgent::forget_move(const HostNode& node) {
  spdlog::info("{}: its home no longer answers", node.spec.container());
  remove_source_mount(options_.evacuation, node);
  if (Status removed = nodes_.remove_claimed(node.spec.container()); !removed) {
    spdlog::warn("{}", removed.error().message);
  }
}

// Returns whether the host of this node asks the home in this round. The hosts of a large job take
// turns, but each asks often enough to show that it is alive.
bool JobAgent::is_turn(const NodeSpec& spec, unsigned round) const {
  const auto rounds_max = options_.home.host_timeout / (3 * kOrphanRounds * kTendInterval);
  const size_t turns = std::min<size_t>(spec.node_count() / kQuestionsPerCheck, rounds_max);
  return turns < 2 || (round + spec.index) % turns == 0;
}

// Removes nodes that do not belong to this host, according to their home.
void JobAgent::remove_orphans(unsigned round) {
  std::set<std::string> silent;
  for (const HostNode& node : nodes_.list()) {
    const std::string& home = node.spec.home;
    if (silent.contains(home)) continue;
    if (!is_turn(node.spec, round)) {
      report_loss(node);
      continue;
    }
    auto place = ask_peer(options_.peers, home,
                          to_request(host_request::Place{.job = node.spec.job,
                                                         .index = node.spec.index,
                                                         .asker = options_.host,
                                                         .pool = to_json(pool_.report())}),
                          kPlacePatience);
    note_answer(home, place ? nullptr : &place.error());
    // Asks this home about no further node, because each question may take long.
    if (!place) silent.insert(home);
    // If the node moves, finish_moves() decides what happens to it. The question has only shown the
    // home that the host is alive.
    const auto now = nodes_.find(node.spec.container());
    if (!now || !now->moving_to.empty()) continue;
    bool orphan = place ? place->value("job_ended", false) : is_orphaned(home);
    if (place && !orphan) {
      const bool arrived = place->value("host", "") == options_.host;
      if (arrived && node.expected) (void)nodes_.note_arrival(node.spec.container());
      if (!arrived && now->expected) report_arrival(*now, place->value("host", ""));
      orphan = !arrived && place->value("moving_to", "") != options_.host;
    }
    if (!orphan) {
      report_loss(node);
      continue;
    }
    spdlog::info("{} no longer belongs to this host: {}", node.spec.container(),
                 !place                             ? place.error().message
                 : place->value("job_ended", false) ? "its job has ended"
                                                    : "it is on host " + place->value("host", ""));
    if (Status removed = remove_node(node.spec.container()); !removed) {
      spdlog::warn("{}", removed.error().message);
    }
  }
}

Status JobAgent::remove_node(const std::string& container) {
  epochs_.end(container);
  files_.cancel(container);
  const auto node = nodes_.find(container);
  if (node && node->expected) {
    if (Status aborted = abort_arrival(options_.evacuation, *node); !aborted) return aborted;
  }
  return nodes_.remove(container);
}

// Removes containers that a `runc restore` finished after their node was removed, and the ports of
// jobs that ended during their start.
void JobAgent::remove_strays() {
  auto runc = Runc::find();
  if (!runc) return;
  auto names = runc->list();
  if (!names) return spdlog::warn("{}", names.error().message);
  for (const std::string& name : *names) {
    if (!is_job_container(name) || nodes_.find(name)) continue;
    if (nodes_.has_record(name)) continue;  // this agent could not read the node's record
    spdlog::warn("removing the container {}, which belongs to no job node", name);
    if (Status removed = runc->remove(name); !removed) spdlog::warn("{}", removed.error().message);
  }
  home_.remove_stray_ports();
}

}  // namespace ppmr
