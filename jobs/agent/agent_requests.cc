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
// This is longer than `ppmr migrate --cancel` takes.
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

json JobAgent::answer_user(const json& message, const ControlClient& client,
                           std::vector<UniqueFd>& descriptors) {
  namespace request = user_request;
  const auto asked = read_request<request::Any>(message);
  if (!asked) return refusal(asked.error());
  return std::visit(
      EachKind{
          [&](const request::Run& run) { return start_job(run, client, descriptors); },
          [&](const request::Resume& resume) { return resume_job(resume, client, descriptors); },
          [&](const request::Suspend& suspend) { return suspend_job(suspend, client.uid); },
          [&](const request::Check& check) { return check_hosts(check.hosts, client.uid); },
          [&](const request::Exists& exists) { return answer_launcher(exists.job); },
          [&](const request::Reconnect& job) {
            return reconnect(job.job, client.uid, descriptors);
          },
          [&](const request::Standstill& job) {
            return answer_of(home_.note_launcher(job.job, client.uid, job.launcher));
          },
          [&](const request::End& end) {
            return answer_of(home_.end(end.job, client.uid, {"its command has ended"}));
          },
          [&](const request::Hold& hold) {
            return answer_of(holders_.add(client.uid, hold.allocation, client.pid));
          },
          [&](const request::Status&) { return status(client.uid); },
          [&](const request::Evacuate& evacuation) {
            return evacuation.host == options_.host
                       ? evacuate(client.uid, evacuation.to, evacuation.limits)
                       : evacuate_other(evacuation.host,
                                        {client.uid, evacuation.to, evacuation.limits});
          },
          [&](const request::Cancel& moves) {
            if (moves.host == options_.host) return cancel(client.uid);
            return ask_other(moves.host, to_request(host_request::Cancel{{client.uid}}));
          },
          [&](const request::Return& back) {
            if (back.host == options_.host) return give_back(client.uid);
            return ask_other(back.host, to_request(host_request::Return{{client.uid}}));
          },
      },
      *asked);
}

json JobAgent::answer_launcher(const std::string& job) const {
  const auto news = home_.exists(job);
  if (news) {
    return {{"ok", true}, {"rollbacks", news->rollbacks}, {"stands_still", news->stands_still}};
  }
  json gone = refusal(news.error());
  gone["suspended"] = home_.how_it_ended(job).is_suspended;
  return gone;
}

json JobAgent::reconnect(const std::string& job, uid_t uid,
                         std::vector<UniqueFd>& descriptors) const {
  auto connection = home_.reconnect(job, uid);
  if (!connection) return refusal(connection.error());
  descriptors.push_back(std::move(connection->connection));
  return {{"ok", true}, {"rollbacks", connection->rollbacks}};
}

json JobAgent::ask_other(const std::string& host, const json& request) const {
  if (!is_host_name(host)) return refusal({EINVAL, "'" + host + "' is not the name of a host"});
  auto answer = ask_peer(options_.peers, host, request, kOperatorPatience);
  return answer ? *answer : refusal(answer.error());
}

json JobAgent::start_job(const user_request::Run& request, const ControlClient& client,
                         std::vector<UniqueFd>& descriptors) {
  auto user = find_user(client.uid);
  if (!user) return refusal(user.error());
  auto started = home_.run({.hosts = request.hosts,
                            .spares = request.spares,
                            .user = std::move(*user),
                            .launcher = client.pid,
                            .allocation = request.allocation,
                            .protect_every = request.protect,
                            .mtbf = request.mtbf,
                            .rdma = request.rdma});
  if (!started) return refusal(started.error());
  descriptors.push_back(std::move(started->connection));
  return {{"ok", true},
          {"job", started->record.id},
          {"token", started->record.token},
          {"rdma", started->record.rdma},
          {"no_rdma", started->no_rdma}};
}

json JobAgent::resume_job(const user_request::Resume& request, const ControlClient& client,
                          std::vector<UniqueFd>& descriptors) {
  auto user = find_user(client.uid);
  if (!user) return refusal(user.error());
  auto resumed = home_.resume({.directory = request.directory,
                               .run = {.hosts = request.hosts,
                                       .spares = request.spares,
                                       .user = std::move(*user),
                                       .launcher = client.pid,
                                       .allocation = request.allocation,
                                       .protect_every = request.protect,
                                       .mtbf = request.mtbf},
                               .again = request.again});
  if (!resumed) return refusal(resumed.error());
  StartedJob& started = resumed->started;
  descriptors.push_back(std::move(started.connection));
  return {{"ok", true},
          {"job", started.record.id},
          {"token", started.record.token},
          {"launcher", resumed->launcher}};
}

json JobAgent::suspend_job(const user_request::Suspend& request, uid_t uid) {
  const auto suspended = home_.suspend({.job = request.job,
                                        .uid = uid,
                                        .allocation = request.allocation,
                                        .directory = request.directory});
  if (suspended) {
    return {{"ok", true},
            {"job", suspended->job},
            {"bytes", suspended->bytes},
            {"took_ms", suspended->took.count()}};
  }
  for (const HostNode& node : nodes_.list()) {
    if (node.spec.job != request.job || node.spec.home == options_.host) continue;
    return refusal({EREMOTE, fmt::format("job {} began on host {}: suspend it there", request.job,
                                         node.spec.home)});
  }
  return refusal(suspended.error());
}

json JobAgent::check_hosts(const std::vector<std::string>& hosts, uid_t uid) const {
  if (hosts.size() > kHostsMax) {
    return refusal({EINVAL, fmt::format("the request names {} hosts, the maximum is {}",
                                        hosts.size(), kHostsMax)});
  }
  std::vector<json> found(hosts.size());
  const json hello = to_request(host_request::Hello{.user = uid});
  (void)for_each_in_parallel(hosts.size(), [&](size_t i) -> Status {
    auto answer = is_host_name(hosts[i]) ? ask_peer(options_.peers, hosts[i], hello, kHelloPatience)
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
    auto answer =
        ask_peer(options_.peers, home, to_request(host_request::Status{{uid}}), kStatusPatience);
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

json JobAgent::answer_peer(const json& message) {
  // The job's home and this agent must use the same name for this host. Otherwise one host with an
  // alias could count as two.
  if (const std::string asked = message.at("asked"); asked != options_.host) {
    return refusal({EINVAL, "the agent at " + asked + " serves the host " + options_.host +
                                ": use that name (ppmr job agent --host)"});
  }
  namespace request = host_request;
  const auto asked = read_request<request::Any>(message);
  if (!asked) return refusal(asked.error());
  return std::visit(
      EachKind{
          [&](const request::Alive&) -> json {
            return {{"ok", true}, {"pool", to_json(pool_.report())}};
          },
          [&](const request::Hello& hello) { return welcome(hello); },
          [&](const request::Join& join) { return answer_of(make_node(join)); },
          [&](const request::Arrived& node) {
            return answer_of(nodes_.note_arrival(node.container));
          },
          [&](const request::Leave& leave) {
            // Two homes may have tried to resume the same job. The home that failed must not remove
            // the nodes of the home that succeeded.
            const auto node = nodes_.find(leave.container);
            const bool is_others = node && !leave.home.empty() && node->spec.home != leave.home;
            return answer_of(is_others ? Status{} : remove_node(leave.container));
          },
          [&](const request::Present& node) -> json {
            return {{"ok", true}, {"present", nodes_.find(node.container).has_value()}};
          },
          [&](const request::Evacuate& host) { return evacuate(host.uid, host.to, host.limits); },
          [&](const request::Cancel& moves) { return cancel(moves.uid); },
          [&](const request::Return& back) { return give_back(back.uid); },
          [&](const request::Status& of) -> json {
            return {{"ok", true}, {"jobs", home_.views(of.uid)}};
          },
          [&](const request::Reserve& node) -> json {
            const auto spare = home_.reserve(node.job, node.index, node.from, node.to);
            if (spare) return {{"ok", true}, {"to", *spare}};
            return {{"ok", true}, {"refusal", refusal(spare.error())}};
          },
          [&](const request::Settle& move) -> json {
            const Status settled = home_.settle(move);
            if (settled || settled.error().errno_value != ENOENT) return answer_of(settled);
            return {{"ok", true}, {"job_ended", true}};
          },
          [&](const request::Place& node) -> json {
            if (node.pool) home_.note_host(node.asker, parse_pool_report(*node.pool));
            const auto place = home_.place(node.job, node.index, node.asker);
            if (!place && place.error().errno_value != ENOENT) return refusal(place.error());
            if (!place) return {{"ok", true}, {"job_ended", true}};
            return {{"ok", true}, {"host", place->first}, {"moving_to", place->second}};
          },
          [&](const request::Lost& node) {
            home_.lose(node.job, node.index, node.asker, node.why);
            return kDone;
          },
          [&](const auto& step) -> json {  // all other kinds have a take_step()
            if (is_job_container(step.container)) return take_step(step);
            return refusal({EINVAL, "'" + step.container + "' is not the name of a job node"});
          },
      },
      *asked);
}

json JobAgent::welcome(const host_request::Hello& hello) {
  if (Status in = check_pool(hello.user); !in) return refusal(in.error());
  if (auto runc = Runc::find(); !runc) return refusal(runc.error());
  if (auto criu = find_criu(); !criu) return refusal(criu.error());
  const auto mtu = bridge_mtu_bytes(options_.nodes.network.bridge);
  if (!mtu) return refusal(mtu.error());
  if (hello.allocation) {
    const auto step = find_step(hello.user, *hello.allocation);
    if (!step) return refusal(step.error());
  }
  return {{"ok", true}, {"no_rdma", why_no_rdma()}};
}

Status JobAgent::make_node(const host_request::Join& join) {
  auto spec = parse_node_spec(join.spec);
  if (!spec) return failure(spec.error());
  if (Status in = check_pool(spec->user.uid); !in) return in;
  if (Status admitted = admit(spec->user); !admitted) return admitted;
  if (const std::string reason = spec->rdma ? why_no_rdma() : ""; !reason.empty()) {
    return failure(ENODEV, "it cannot take a job node with RDMA: " + reason);
  }
  const auto step = find_step(spec->user.uid, spec->allocation);
  if (!step) return failure(step.error());
  return nodes_.create(*spec, *step, join.expected, join.migration);
}

}  // namespace ppmr
