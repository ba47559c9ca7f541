#include "jobs/agent/job_record.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

namespace ppmr {
namespace {

using nlohmann::json;

constexpr const char* kEvacuated = "evacuated";

json to_json(const JobHost& host) {
  return {{"name", host.name},
          {"state", to_string(host.state)},
          {"since_ns", host.since_ns},
          {"reason", host.reason},
          {"failed_moves", host.failed_moves},
          {"pool_changed_ns", host.pool_changed_ns}};
}

json to_json(const JobMove& move) {
  json moved = {
      {"from", move.from}, {"to", move.to}, {"ended_ns", move.ended_ns}, {"error", move.error}};
  if (move.downtime_s) moved["downtime_s"] = *move.downtime_s;
  return moved;
}

json to_json(const JobNodePlace& node) {
  json moves = json::array();
  for (const JobMove& move : node.moves) moves.push_back(to_json(move));
  return {{"name", node.name},
          {"address", node.address},
          {"host", node.host},
          {"moving_to", node.moving_to},
          {"moves", moves}};
}

JobNodePlace parse_node(const json& json) {
  JobNodePlace node{.name = json.at("name"),
                    .address = json.at("address"),
                    .host = json.at("host"),
                    .moving_to = json.at("moving_to")};
  for (const auto& move : json.at("moves")) {
    node.moves.push_back({.from = move.at("from"),
                          .to = move.at("to"),
                          .ended_ns = move.at("ended_ns"),
                          .error = move.at("error")});
    if (move.contains("downtime_s")) node.moves.back().downtime_s = move.at("downtime_s");
  }
  return node;
}

}  // namespace

int64_t unix_time_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

Status take_step(JobHost& host, HostEvent event, const std::string& reason) {
  const auto next = host_step(host.state, event);
  if (!next) return failure(next.error().errno_value, host.name + ": " + next.error().message);
  host.state = *next;
  host.since_ns = unix_time_ns();
  host.reason = reason;
  return {};
}

bool note_report(JobHost& host, const PoolReport& report, uid_t user) {
  if (report.changed_ns < host.pool_changed_ns) return false;
  const bool is_new = report.changed_ns > host.pool_changed_ns;
  host.pool_changed_ns = report.changed_ns;
  if (report.is_out_for(user)) return take_step(host, HostEvent::kTakenOut, kEvacuated) || is_new;
  if (!is_new) return false;
  if (take_step(host, HostEvent::kReturned)) host.failed_moves = 0;
  return true;
}

const JobHost* JobRecord::find_host(const std::string& name) const {
  const auto found = std::find_if(hosts.begin(), hosts.end(),
                                  [&](const JobHost& host) { return host.name == name; });
  return found != hosts.end() ? &*found : nullptr;
}

JobHost* JobRecord::find_host(const std::string& name) {
  return const_cast<JobHost*>(std::as_const(*this).find_host(name));
}

std::string JobRecord::hosts_text() const {
  std::string text;
  for (const JobNodePlace& node : nodes) text += node.address + " " + node.name + "\n";
  return text;
}

NodeSpec JobRecord::spec_of(unsigned index, const std::string& home,
                            const std::string& hosts_text) const {
  return {.job = id,
          .index = index,
          .name = nodes.at(index).name,
          .address = nodes.at(index).address,
          .home = home,
          .token = token,
          .user = user,
          .allocation = allocation,
          .hosts = hosts_text,
          .rdma = rdma};
}

namespace {

// Returns the fields that both records and users' views have. Moves `hosts` and `nodes` into the
// result, which an initializer list would copy.
json view_of(const JobRecord& job, json hosts, json nodes) {
  json view = {{"job", job.id},
               {"uid", job.user.uid},
               {"allocation", job.allocation},
               {"launcher_pid", job.launcher.pid}};
  view["hosts"] = std::move(hosts);
  view["nodes"] = std::move(nodes);
  view["rdma"] = job.rdma;
  if (job.protection.every_ms > 0 || !job.protection.rolling_back.empty()) {
    view["protection"] = to_json(job.protection);
  }
  return view;
}

}  // namespace

json public_view(const JobRecord& job,
                 const std::function<HostContact(const std::string&)>& contact) {
  json hosts = json::array();
  std::unordered_map<std::string, HostState> shown;
  for (const JobHost& host : job.hosts) {
    const HostContact now = contact(host.name);
    const HostState state = shown[host.name] = shown_state(host.state, now.contact);
    json view = to_json(host);
    view.erase("pool_changed_ns");
    view["state"] = to_string(state);
    if (state != host.state) view["since_ns"] = now.since_ns;
    if (!now.reason.empty() && host.reason.empty()) view["reason"] = now.reason;
    hosts.push_back(std::move(view));
  }
  json nodes = json::array();
  for (const JobNodePlace& node : job.nodes) {
    json view = to_json(node);
    view["state"] = to_string(node_state(!node.moving_to.empty(), shown[node.host]));
    nodes.push_back(std::move(view));
  }
  json view = view_of(job, std::move(hosts), std::move(nodes));
  view["now_ns"] = unix_time_ns();
  return view;
}

json to_json(const JobRecord& job) {
  json hosts = json::array();
  for (const JobHost& host : job.hosts) hosts.push_back(to_json(host));
  json nodes = json::array();
  for (const JobNodePlace& node : job.nodes) nodes.push_back(to_json(node));
  json record = view_of(job, std::move(hosts), std::move(nodes));
  record["gid"] = job.user.gid;
  record["groups"] = job.user.groups;
  record["token"] = job.token;
  record["launcher_start_time"] = job.launcher.start_time;
  record["boot_id"] = job.boot_id;
  record["port_address"] = job.port_address;
  record["ending"] = job.ending;
  record["suspending_to"] = job.suspending_to;
  record["suspension"] = job.suspension;
  return record;
}

JobRecord parse_job_record(const json& json) {
  JobRecord job{
      .id = json.at("job"),
      .user = {.uid = json.at("uid"), .gid = json.at("gid"), .groups = json.at("groups")},
      .token = json.at("token"),
      .allocation = json.at("allocation"),
      .launcher = {.pid = json.at("launcher_pid"), .start_time = json.at("launcher_start_time")},
      .boot_id = json.at("boot_id"),
      .port_address = json.at("port_address"),
      .ending = json.at("ending")};
  for (const auto& host : json.at("hosts")) {
    job.hosts.push_back({.name = host.at("name"),
                         .state = parse_host_state(host.at("state")).value_or(HostState::kInactive),
                         .since_ns = host.at("since_ns"),
                         .reason = host.at("reason"),
                         .failed_moves = host.at("failed_moves"),
                         .pool_changed_ns = host.value("pool_changed_ns", int64_t{0})});
  }
  for (const auto& node : json.at("nodes")) job.nodes.push_back(parse_node(node));
  if (const auto found = json.find("protection"); found != json.end()) {
    job.protection = parse_job_protection(*found);
  }
  job.suspending_to = json.value("suspending_to", "");
  job.suspension = json.value("suspension", "");
  job.rdma = json.value("rdma", false);
  return job;
}

}  // namespace ppmr
