#include "jobs/agent/home_jobs.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <set>

#include "base/whole_file.h"
#include "jobs/agent/parallel.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kJoinPatience{60'000};   // a loaded host needs this long for runc
constexpr milliseconds kLeavePatience{30'000};  // a loaded host needs this long to remove a node
constexpr milliseconds kCheckPatience{10'000};
// This is longer than agents wait for the step of a scheduler.
constexpr milliseconds kSparePatience{50'000};
constexpr milliseconds kConnectPatience{20'000};
constexpr size_t kReasonsMax = 1000;

std::string random_hexadecimal(size_t digits) {
  std::vector<unsigned char> bytes(digits / 2);
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

Status check_hosts(const JobRequest& request) {
  if (!request.allocation.empty() && !is_allocation(request.allocation)) {
    return failure(EINVAL, "'" + request.allocation + "' is not the number of a scheduler's job");
  }
  if (request.hosts.empty()) return failure(EINVAL, "the job has no host");
  std::set<std::string> seen;
  for (const auto& names : {request.hosts, request.spares}) {
    for (const std::string& name : names) {
      if (!is_host_name(name)) return failure(EINVAL, "'" + name + "' is not the name of a host");
      if (!seen.insert(name).second) return failure(EINVAL, "host " + name + " is named twice");
    }
  }
  return {};
}

std::string on_host(const std::string& host, const Error& error) {
  return "host " + host + ": " + error.message;
}

}  // namespace

HomeJobs::HomeJobs(HomeOptions options, RecordFiles records)
    : options_(std::move(options)), records_(std::move(records)), addresses_(options_.addresses) {
  for (const json& record : records_.read_all()) {
    try {
      JobRecord job = parse_job_record(record);
      for (const JobNodePlace& node : job.nodes) addresses_.take(node.address);
      addresses_.take(job.port_address);
      const std::string id = job.id;
      jobs_[id] = std::move(job);
    } catch (const json::exception& error) {
      spdlog::error("skipped the record of a job: {}", error.what());
    }
  }
}

Result<JobRecord> HomeJobs::begin_record(const JobRequest& request) const {
  if (Status checked = check_hosts(request); !checked) return failure(checked.error());
  auto launcher = identify(request.launcher);
  if (!launcher) return failure(launcher.error());
  JobRecord job{.id = random_hexadecimal(8),
                .user = request.user,
                .token = random_hexadecimal(32),
                .allocation = request.allocation,
                .launcher = *launcher,
                .boot_id = read_boot_id()};
  job.protection.every_ms = request.protect_every.count();
  job.protection.mtbf_ms = request.mtbf.count();
  job.rdma = request.rdma;
  return job;
}

Status HomeJobs::check_limits_locked(uid_t user, size_t wanted) const {
  const auto of_user = std::count_if(
      jobs_.begin(), jobs_.end(), [&](const auto& entry) { return entry.second.user.uid == user; });
  if (user != 0 && static_cast<size_t>(of_user) >= options_.jobs_per_user_max) {
    return failure(EAGAIN, fmt::format("this user has {} jobs here already: end one first",
                                       options_.jobs_per_user_max));
  }
  // Counts the addresses of this user, so that one user cannot take the addresses of all others.
  size_t taken = 0;
  for (const auto& [id, other] : jobs_) {
    if (other.user.uid == user) taken += other.nodes.size() + 1;
  }
  const bool too_many =
      user != 0 && taken + wanted > std::max<size_t>(options_.addresses.count() / 2, 2);
  if (!too_many && wanted <= addresses_.free_count()) return {};
  return failure(EADDRNOTAVAIL,
                 fmt::format("the job needs {} addresses; of those of this host {} are free, and a "
                             "user may have half of all: extend --addresses of ppmr job agent",
                             wanted, addresses_.free_count()));
}

Result<JobRecord> HomeJobs::plan(const JobRequest& request) {
  auto begun = begin_record(request);
  if (!begun) return begun;
  JobRecord& job = *begun;
  for (const std::string& name : request.hosts) job.hosts.push_back({.name = name});
  for (const std::string& name : request.spares) {
    job.hosts.push_back({.name = name, .state = HostState::kSpare});
  }
  for (JobHost& host : job.hosts) host.since_ns = unix_time_ns();
  if (job.protection.every_ms > 0) {
    for (const std::string& name : request.hosts) job.nodes.push_back({.name = name, .host = name});
    if (const auto partners = choose_partners(job); !partners) return failure(partners.error());
    job.nodes.clear();
  }

  MutexLock lock(mutex_);
  const size_t wanted = request.hosts.size() + 1;
  if (Status few = check_limits_locked(request.user.uid, wanted); !few) return failure(few.error());
  job.port_address = *addresses_.take_next();
  for (const std::string& name : request.hosts) {
    job.nodes.push_back({.name = name, .address = *addresses_.take_next(), .host = name});
  }
  // Saves the job before it makes any node. A later agent then removes the nodes.
  if (Status saved = save(job); !saved) {
    for (const JobNodePlace& node : job.nodes) addresses_.give_back(node.address);
    addresses_.give_back(job.port_address);
    return failure(saved.error());
  }
  jobs_[job.id] = job;
  return job;
}

Status HomeJobs::make_nodes(const JobRecord& job) const {
  const std::string hosts_text = job.hosts_text();
  return for_each_in_parallel(job.hosts.size(), [&](size_t i) -> Status {
    const std::string& host = job.hosts[i].name;
    const bool spare = i >= job.nodes.size();
    json request;
    if (spare) {
      request = to_request(host_request::Hello{.user = job.user.uid, .allocation = job.allocation});
    } else {
      const auto spec = job.spec_of(static_cast<unsigned>(i), options_.host, hosts_text);
      request = to_request(host_request::Join{.spec = to_json(spec)});
    }
    auto answer = options_.ask(host, request, spare ? kSparePatience : kJoinPatience);
    if (answer) return {};
    return failure(answer.error().errno_value, on_host(host, answer.error()));
  });
}

// Ignores hosts that do not answer, or that refuse. run() fails for them when it makes the nodes.
std::string HomeJobs::why_no_rdma_on_hosts(const JobRequest& request) const {
  std::vector<std::string> hosts = request.hosts;
  hosts.insert(hosts.end(), request.spares.begin(), request.spares.end());
  std::vector<std::string> reasons(hosts.size());
  const json hello = to_request(host_request::Hello{.user = request.user.uid});
  (void)for_each_in_parallel(hosts.size(), [&](size_t i) -> Status {
    auto answer = options_.ask(hosts[i], hello, kCheckPatience);
    if (answer) reasons[i] = answer->at("no_rdma");
    return {};
  });
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (!reasons[i].empty()) return "host " + hosts[i] + ": " + reasons[i];
  }
  return "";
}

Result<StartedJob> HomeJobs::run(const JobRequest& wanted) {
  JobRequest request = wanted;
  std::string no_rdma;
  if (request.rdma && request.protect_every.count() > 0) {
    return failure(EINVAL,
                   "--rdma and --protect exclude each other: an epoch of a job with RDMA "
                   "is not possible yet; leave one of them out");
  }
  if (request.rdma) {
    if (Status checked = check_hosts(request); !checked) return failure(checked.error());
    no_rdma = why_no_rdma_on_hosts(request);
    request.rdma = no_rdma.empty();
  }
  auto job = plan(request);
  if (!job) return failure(job.error());
  Status made = make_nodes(*job);
  if (made) made = join_network(*job);
  Result<UniqueFd> connection = failure(EIO, "");
  if (made) {
    connection = connect_through_port(job->port_name(), job->nodes[0].address, kConnectPatience);
    if (!connection) made = failure(connection.error());
  }
  if (!made) {
    (void)end(job->id, 0, {made.error().message});
    return failure(made.error());
  }
  spdlog::info("job {} of user {} began on {} hosts", job->id, job->user.uid, job->nodes.size());
  return StartedJob{std::move(*job), std::move(*connection), std::move(no_rdma)};
}

Status HomeJobs::join_network(const JobRecord& job) {
  if (Status made = create_port(options_.network, job.port_name(), job.port_address); !made) {
    return made;
  }
  {
    MutexLock lock(mutex_);
    if (auto found = find_locked(job.id); found) {
      return port_of(options_.network, job.port_name(), job.port_address).attach();
    }
  }
  (void)remove_port(job.port_name());
  return failure(ECANCELED, "job " + job.id + " has ended, because its launcher has ended");
}

Status HomeJobs::end(const std::string& id, uid_t uid, const JobEnd& why) {
  JobRecord job;
  {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return {};
    if (uid != 0 && uid != found->second.user.uid) {
      return failure(EPERM, "job " + id + " belongs to another user");
    }
    if (!removing_.insert(id).second) return {};
    if (ended_.size() >= kReasonsMax) ended_.clear();
    ended_[id] = why;
    // Saves that the job is ending. If the agent dies now, the next agent goes on removing the
    // nodes.
    found->second.ending = true;
    if (Status saved = save(found->second); !saved) spdlog::error("{}", saved.error().message);
    job = found->second;
  }
  remove(job);
  if (job.protection.next > 1) forget_epochs(job, options_.ask);
  MutexLock lock(mutex_);
  records_.remove(id);
  epoch_began_.erase(id);
  stuck_since_.erase(id);
  for (unsigned i = 0; i < job.nodes.size(); ++i) {
    addresses_.give_back(job.nodes[i].address);
    asked_.erase(job.container_of(i));
  }
  addresses_.give_back(job.port_address);
  jobs_.erase(id);
  removing_.erase(id);
  spdlog::info("job {} ended: {}", id, why.why);
  return {};
}

// Removes the nodes of a job. A host that does not answer now asks later to which host its nodes
// belong, and removes them then.
void HomeJobs::remove(const JobRecord& job) {
  (void)for_each_in_parallel(job.nodes.size(), [&](size_t i) -> Status {
    const json leave = to_request(host_request::Leave{
        .container = job.container_of(static_cast<unsigned>(i)), .home = options_.host});
    for (const std::string& host : {job.nodes[i].host, job.nodes[i].moving_to}) {
      if (host.empty()) continue;
      auto answer = options_.ask(host, leave, kLeavePatience);
      if (!answer) spdlog::warn("job {}: {}", job.id, on_host(host, answer.error()));
    }
    return {};
  });
  if (Status removed = remove_port(job.port_name()); !removed) {
    spdlog::error("job {}: {}", job.id, removed.error().message);
  }
}

bool HomeJobs::is_stray_port(const std::string& name) const {
  constexpr std::string_view kBefore = "ppmr-", kBehind = "-home";
  if (!name.starts_with(kBefore) || !name.ends_with(kBehind)) return false;
  const size_t around = kBefore.size() + kBehind.size();
  const std::string id =
      name.size() > around ? name.substr(kBefore.size(), name.size() - around) : "";
  MutexLock lock(mutex_);
  return is_job_id(id) && !jobs_.contains(id) && absence_locked(id).errno_value == ENOENT;
}

void HomeJobs::remove_stray_ports() {
  for (const auto& entry : list_directory("/run/netns").value_or(DirectoryEntries())) {
    const std::string name = entry.path().filename();
    if (!is_stray_port(name)) continue;
    if (Status removed = remove_port(name); !removed) spdlog::warn("{}", removed.error().message);
  }
}

Error HomeJobs::absence_locked(const std::string& id) const {
  const bool may_run = !jobs_.contains(id) && !ended_.contains(id);
  if (may_run && is_job_id(id) && records_.exists(id)) {
    return {EIO, "the record of job " + id + " could not be read"};
  }
  return {ENOENT, "job " + id + " has ended"};
}

Result<JobRecord*> HomeJobs::find_locked(const std::string& job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.ending) return failure(absence_locked(job));
  return &found->second;
}

Status HomeJobs::replace_locked(JobRecord& known, JobRecord changed) {
  if (Status saved = save(changed); !saved) return saved;
  known = std::move(changed);
  return {};
}

Result<std::pair<std::string, std::string>> HomeJobs::place(const std::string& id, unsigned index,
                                                            const std::string& asker) {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second.ending || index >= found->second.nodes.size()) {
    return failure(absence_locked(id));
  }
  const JobNodePlace& node = found->second.nodes[index];
  if (asker == node.host) {
    asked_[found->second.container_of(index)] = Clock::now();
  }
  return std::pair(node.host, node.moving_to);
}

Result<LauncherNews> HomeJobs::exists(const std::string& id) const {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(id);
  if (found != jobs_.end() && !found->second.ending) {
    const JobProtection& protection = found->second.protection;
    const bool has_begun = !protection.rolling_back.empty() && !protection.may_still_answer;
    return LauncherNews{.rollbacks = protection.rollbacks + (has_begun ? 1 : 0),
                        .stands_still = standing_.contains(id)};
  }
  const auto end = ended_.find(id);
  return end != ended_.end() ? failure(ENOENT, end->second.why) : failure(absence_locked(id));
}

JobEnd HomeJobs::how_it_ended(const std::string& id) const {
  MutexLock lock(mutex_);
  const auto end = ended_.find(id);
  return end != ended_.end() ? end->second : JobEnd{"job " + id + " has ended"};
}

void HomeJobs::lose(const std::string& id, unsigned index, const std::string& asker,
                    const std::string& why) {
  std::string message;
  {
    MutexLock lock(mutex_);
    auto found = find_locked(id);
    if (!found || index >= (*found)->nodes.size()) return;
    const JobNodePlace& node = (*found)->nodes[index];
    // The report may be older than a move of the node.
    if (node.host != asker || !node.moving_to.empty()) return;
    message = fmt::format("node {} on host {} was lost: {}", node.name, node.host, why);
  }
  on_loss(id, message.substr(0, kMoveErrorMaxBytes));
}

std::string HomeJobs::find_loss(const JobRecord& job) {
  const int64_t limit_ns = std::chrono::nanoseconds(options_.host_timeout).count();
  for (unsigned i = 0; i < job.nodes.size(); ++i) {
    const JobNodePlace& node = job.nodes[i];
    const std::string container = job.container_of(i);
    // Looks only at nodes that move, because few do: finding the host of each node would take time
    // proportional to the square of their number.
    const JobHost* moving = node.moving_to.empty() ? nullptr : job.find_host(node.host);
    const bool moves_for_long = moving != nullptr && unix_time_ns() - moving->since_ns > limit_ns;
    {
      MutexLock lock(mutex_);
      const auto asked = asked_.emplace(container, Clock::now()).first;
      if (!moves_for_long && Clock::now() - asked->second < options_.host_timeout) continue;
    }
    for (const std::string& name : {node.host, moves_for_long ? node.moving_to : std::string()}) {
      if (name.empty()) continue;
      const std::string loss = probe(name, container);
      if (loss.empty()) continue;
      // A host removes a moved node only after the home has recorded the move.
      MutexLock lock(mutex_);
      auto now = find_locked(job.id);
      if (now && (*now)->nodes[i].host == node.host && (*now)->nodes[i].moving_to == node.moving_to)
        return loss;
    }
    MutexLock lock(mutex_);
    asked_[container] = Clock::now();
  }
  return "";
}

// Asks the host, and returns why the node is lost; empty: the node is not lost.
std::string HomeJobs::probe(const std::string& host, const std::string& container) const {
  auto answer = options_.ask(host, to_request(host_request::Present{{container}}), kCheckPatience);
  if (answer && answer->value("present", true)) return "";
  if (answer) return fmt::format("host {} has lost its job node", host);
  // A host that refuses connections lives, and so does its node: only the job agent is away. A host
  // whose address is not found may live.
  if (contact_of(answer.error()) != Contact::kSilent) return "";
  return fmt::format("host {} does not answer for {} s: its job node is lost", host,
                     options_.host_timeout.count());
}

void HomeJobs::tend() {
  const std::string boot_id = read_boot_id();
  std::vector<JobRecord> jobs;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, job] : jobs_) {
      if (!removing_.contains(id)) jobs.push_back(job);
    }
  }
  for (const JobRecord& job : jobs) {
    if (job.ending || job.boot_id != boot_id || !is_alive(job.launcher)) {
      (void)end(job.id, 0, {fmt::format("its launcher (pid {}) has ended", job.launcher.pid)});
      continue;
    }
    if (!job.protection.rolling_back.empty()) continue;
    if (const std::string loss = find_loss(job); !loss.empty()) on_loss(job.id, loss);
  }
}

}  // namespace ppmr
