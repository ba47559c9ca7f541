// The requests that users and other agents may send to an agent.
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>

#include "jobs/agent/job_agent.h"
#include "jobs/agent/parallel.h"
#include "jobs/node/host_rdma.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kHelloPatience{10'000};
constexpr milliseconds kStatusPatience{5'000};
// Longer than `ppmr migrate --cancel` takes.
constexpr milliseconds kOperatorPatience{70'000};
constexpr std::chrono::seconds kAdmissionPatience{20};
// The time limit for the step of a scheduler, which starts at the same time as the job's nodes.
constexpr milliseconds kStepPatience{30'000};

constexpr size_t kHostsMax = 1 << 16;

const json kDone = {{"ok", true}};

// Reads the groups from this host's user database, because a client could claim any group.
Result<JobUser> find_user(uid_t uid) {
  std::vector<char> buffer(16 << 10);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return failure(ENOENT, "user " + std::to_string(uid) + " is not in the user database");
  }
  JobUser user{.uid = uid, .gid = entry.pw_gid};
  int count = 64;
  user.groups.resize(static_cast<size_t>(count));
  if (getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count) < 0) {
    user.groups.resize(static_cast<size_t>(count));
    getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count);
  }
  user.groups.resize(static_cast<size_t>(count));
  return user;
}

}  // namespace

Status JobAgent::admit(const JobUser& user) const {
  if (options_.admission_program.empty()) return {};
  auto asked =
      run_command({options_.admission_program, std::to_string(user.uid)}, kAdmissionPatience);
  if (asked && asked->succeeded) return {};
  return failure(EACCES, fmt::format("user {} may not have job nodes on this host: {} {}", user.uid,
                                     options_.admission_program,
                                     asked ? asked->ending : asked.error().message));
}

Result<StepHolder> JobAgent::find_step(uid_t uid, const std::string& allocation) {
  if (allocation.empty()) {
    if (!options_.needs_step) return StepHolder{};
    return failure(EACCES,
                   "this host is for jobs in allocations of Slurm only: call `ppmr job run` "
                   "in one");
  }
  auto holder = holders_.await(uid, allocation, kStepPatience);
  if (holder && options_.needs_step && holder->group.empty()) {
    return failure(EACCES, fmt::format("process {}, which says that it holds this host for job {}, "
                                       "is in no control group of that job",
                                       holder->process.pid, allocation));
  }
  return holder;
}

json JobAgent::answer_user(const json& request, const ControlClient& client,
                           std::vector<UniqueFd>& descriptors) {
  const std::string op = request.at("op");
  if (op == "run") return start_job(request, client, descriptors);
  if (op == "check") return check_hosts(request, client.uid);
  if (op == "exists") {
    const auto news = home_.exists(request.at("job"));
    if (news) {
      return {{"ok", true}, {"rollbacks", news->rollbacks}, {"stands_still", news->stands_still}};
    }
    json gone = refusal(news.error());
    gone["suspended"] = home_.how_it_ended(request.at("job")).is_suspended;
    return gone;
  }
  if (op == "resume") return resume_job(request, client, descriptors);
  if (op == "suspend") return suspend_job(request, client.uid);
  if (op == "standstill") {
    return answer_of(home_.note_launcher(request.at("job"), client.uid, request.at("launcher")));
  }
  if (op == "end")
    return answer_of(home_.end(request.at("job"), client.uid, {"its command has ended"}));
  if (op == "hold") {
    return answer_of(holders_.add(client.uid, request.at("allocation"), client.pid));
  }
  if (op == "reconnect") {
    auto connection = home_.reconnect(request.at("job"), client.uid);
    if (!connection) return refusal(connection.error());
    descriptors.push_back(std::move(connection->connection));
    return {{"ok", true}, {"rollbacks", connection->rollbacks}};
  }
  if (op == "status") return status(client.uid);
  if (op == "evacuate") {
    const std::string host = request.at("host");
    const std::string to = request.value("to", "");
    return host == options_.host ? evacuate(client.uid, to) : evacuate_other(host, client.uid, to);
  }
  if (op == "return" || op == "cancel") {
    const std::string host = request.at("host");
    if (!is_host_name(host)) return refusal({EINVAL, "'" + host + "' is not the name of a host"});
    const json asked = {{"op", op}, {"uid", client.uid}, {"asked", host}};
    if (host == options_.host) return answer_peer(asked);
    auto answer = ask_peer(options_.peers, host, asked, kOperatorPatience);
    return answer ? *answer : refusal(answer.error());
  }
  return refusal({EINVAL, "unknown request '" + op + "'"});
}

json JobAgent::start_job(const json& request, const ControlClient& client,
                         std::vector<UniqueFd>& descriptors) {
  auto user = find_user(client.uid);
  if (!user) return refusal(user.error());
  auto started = home_.run({.hosts = request.at("hosts").get<std::vector<std::string>>(),
                            .spares = request.at("spares").get<std::vector<std::string>>(),
                            .user = std::move(*user),
                            .launcher = client.pid,
                            .allocation = request.at("allocation"),
                            .protect_every = milliseconds(request.value("protect_ms", 0)),
                            .rdma = request.value("rdma", false)});
  if (!started) return refusal(started.error());
  descriptors.push_back(std::move(started->connection));
  return {{"ok", true},
          {"job", started->record.id},
          {"token", started->record.token},
          {"rdma", started->record.rdma},
          {"no_rdma", started->no_rdma}};
}

json JobAgent::resume_job(const json& request, const ControlClient& client,
                          std::vector<UniqueFd>& descriptors) {
  auto user = find_user(client.uid);
  if (!user) return refusal(user.error());
  auto resumed =
      home_.resume({.directory = request.at("directory"),
                    .run = {.hosts = request.at("hosts").get<std::vector<std::string>>(),
                            .spares = request.at("spares").get<std::vector<std::string>>(),
                            .user = std::move(*user),
                            .launcher = client.pid,
                            .allocation = request.at("allocation"),
                            .protect_every = milliseconds(request.value("protect_ms", 0))},
                    .again = request.value("again", false)});
  if (!resumed) return refusal(resumed.error());
  StartedJob& started = resumed->started;
  descriptors.push_back(std::move(started.connection));
  return {{"ok", true},
          {"job", started.record.id},
          {"token", started.record.token},
          {"launcher", resumed->launcher}};
}

json JobAgent::suspend_job(const json& request, uid_t uid) {
  const std::string job = request.at("job");
  const auto suspended = home_.suspend({.job = job,
                                        .uid = uid,
                                        .allocation = request.value("allocation", ""),
                                        .directory = request.at("directory")});
  if (suspended) {
    return {{"ok", true},
            {"job", suspended->job},
            {"bytes", suspended->bytes},
            {"took_ms", suspended->took.count()}};
  }
  for (const HostNode& node : nodes_.list()) {
    if (node.spec.job != job || node.spec.home == options_.host) continue;
    return refusal(
        {EREMOTE, fmt::format("job {} began on host {}: suspend it there", job, node.spec.home)});
  }
  return refusal(suspended.error());
}

json JobAgent::check_hosts(const json& request, uid_t uid) const {
  const auto hosts = request.at("hosts").get<std::vector<std::string>>();
  if (hosts.size() > kHostsMax) return refusal({EINVAL, "too many hosts"});
  std::vector<json> found(hosts.size());
  (void)for_each_in_parallel(hosts.size(), [&](size_t i) -> Status {
    auto answer =
        is_host_name(hosts[i])
            ? ask_peer(options_.peers, hosts[i], {{"op", "hello"}, {"user", uid}}, kHelloPatience)
            : Result<json>(failure(EINVAL, "not the name of a host"));
    found[i] = {{"host", hosts[i]}, {"problem", answer ? "" : answer.error().message}};
    return {};
  });
  return {{"ok", true}, {"hosts", found}};
}

json JobAgent::status(uid_t uid) const {
  std::map<std::string, json> jobs;
  for (json& job : home_.views(uid)) {
    const std::string id = job.at("job");
    jobs[id] = std::move(job);
  }
  std::map<std::string, std::string> silent;
  for (const HostNode& node : nodes_.list()) {
    const std::string& home = node.spec.home;
    const bool visible = uid == 0 || uid == node.spec.user.uid;
    if (!visible || jobs.contains(node.spec.job) || silent.contains(home)) continue;
    auto answer = ask_peer(options_.peers, home, {{"op", "status"}, {"uid", uid}}, kStatusPatience);
    if (!answer) {
      silent[home] = answer.error().message;
      continue;
    }
    for (const json& job : answer->at("jobs")) jobs.emplace(job.at("job"), job);
  }
  json list = json::array();
  for (auto& [id, job] : jobs) list.push_back(std::move(job));
  return {{"ok", true},
          {"host", options_.host},
          {"out", pool_.report().is_out_for(uid)},
          {"jobs", list},
          {"silent_homes", silent}};
}

json JobAgent::answer_peer(const json& request) {
  const std::string op = request.at("op");
  // With an alias one host could count as two: the job's home and this agent must use the same
  // name.
  if (const std::string asked = request.at("asked"); asked != options_.host) {
    return refusal({EINVAL, "the agent at " + asked + " serves the host " + options_.host +
                                ": use that name (ppmr job agent --host)"});
  }
  if (op == "alive") return {{"ok", true}, {"pool", to_json(pool_.report())}};
  if (request.contains("pool")) {
    home_.note_host(request.value("asker", request.value("from", "")),
                    parse_pool_report(request.at("pool")));
  }
  if (op == "hello") {
    if (Status in = check_pool(request.at("user")); !in) return refusal(in.error());
    if (auto runc = Runc::find(); !runc) return refusal(runc.error());
    if (auto criu = find_criu(); !criu) return refusal(criu.error());
    const auto mtu = bridge_mtu_bytes(options_.nodes.network.bridge);
    if (!mtu) return refusal(mtu.error());
    const json greeting = {{"ok", true}, {"no_rdma", why_no_rdma()}};
    if (!request.contains("uid")) return greeting;
    const auto step = find_step(request.at("uid"), request.at("allocation"));
    return step ? greeting : refusal(step.error());
  }
  if (op == "join") {
    auto spec = parse_node_spec(request.at("spec"));
    if (!spec) return refusal(spec.error());
    if (Status in = check_pool(spec->user.uid); !in) return refusal(in.error());
    if (Status admitted = admit(spec->user); !admitted) return refusal(admitted.error());
    if (const std::string reason = spec->rdma ? why_no_rdma() : ""; !reason.empty()) {
      return refusal({ENODEV, "it cannot take a job node with RDMA: " + reason});
    }
    const auto step = find_step(spec->user.uid, spec->allocation);
    if (!step) return refusal(step.error());
    return answer_of(
        nodes_.create(*spec, *step, request.at("expected"), request.value("migration", "")));
  }
  if (op.starts_with("epoch-") || op.starts_with("rollback-")) return answer_leader(op, request);
  if (op.starts_with("suspend-") || op.starts_with("resume-")) return answer_suspender(op, request);
  if (op == "arrived") return answer_of(nodes_.note_arrival(request.at("container")));
  if (op == "leave") {
    // A home that could not resume a job must not remove the nodes of the one that has.
    const auto node = nodes_.find(request.at("container"));
    if (node && node->spec.home != request.value("home", node->spec.home)) return kDone;
    return answer_of(remove_node(request.at("container")));
  }
  if (op == "evacuate") return evacuate(request.at("uid"), request.at("to"));
  if (op == "return") return give_back(request.at("uid"));
  if (op == "cancel") return cancel(request.at("uid"));
  if (op == "reserve") {
    auto spare =
        home_.reserve(request.at("job"), request.at("index"), request.at("from"), request.at("to"));
    if (spare) return {{"ok", true}, {"to", *spare}};
    return {{"ok", true}, {"refusal", refusal(spare.error())}};
  }
  if (op == "settle") {
    const Status settled = home_.settle({.job = request.at("job"),
                                         .index = request.at("index"),
                                         .from = request.at("from"),
                                         .moved = request.at("moved"),
                                         .spare_failed = request.at("spare_failed"),
                                         .downtime_s = request.value("downtime_s", -1.0),
                                         .error = request.at("error")});
    if (settled || settled.error().errno_value != ENOENT) return answer_of(settled);
    return {{"ok", true}, {"job_ended", true}};
  }
  if (op == "place") {
    auto place = home_.place(request.at("job"), request.at("index"), request.at("asker"));
    if (!place && place.error().errno_value != ENOENT) return refusal(place.error());
    if (!place) return {{"ok", true}, {"job_ended", true}};
    return {{"ok", true}, {"host", place->first}, {"moving_to", place->second}};
  }
  if (op == "present") {
    return {{"ok", true}, {"present", nodes_.find(request.at("container")).has_value()}};
  }
  if (op == "lost") {
    home_.lose(request.at("job"), request.at("index"), request.at("asker"), request.at("why"));
    return kDone;
  }
  if (op == "status") {
    json jobs = json::array();
    for (json& job : home_.views(request.at("uid"))) jobs.push_back(std::move(job));
    return {{"ok", true}, {"jobs", jobs}};
  }
  return refusal({EINVAL, "unknown request '" + op + "'"});
}

}  // namespace ppmr
