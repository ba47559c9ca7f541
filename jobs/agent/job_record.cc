#include "jobs/agent/job_record.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<HostState, const char*>, 4> kStateNames = {{
    {HostState::kReady, "ready"},
    {HostState::kSpare, "spare"},
    {HostState::kMoving, "moving"},
    {HostState::kInactive, "inactive"},
}};

HostState parse_state(const std::string& text) {
  for (const auto& [state, name] : kStateNames) {
    if (text == name) return state;
  }
  return HostState::kInactive;
}

json to_json(const JobHost& host) {
  return {{"name", host.name},
          {"state", to_string(host.state)},
          {"since_ns", host.since_ns},
          {"reason", host.reason},
          {"failed_moves", host.failed_moves}};
}

json to_json(const JobMove& move) {
  json moved = {
      {"from", move.from}, {"to", move.to}, {"ended_ns", move.ended_ns}, {"error", move.error}};
  if (move.downtime_s >= 0) moved["downtime_s"] = move.downtime_s;
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
                          .downtime_s = move.value("downtime_s", -1.0),
                          .error = move.at("error")});
  }
  return node;
}

}  // namespace

std::string to_string(HostState state) {
  return std::find_if(kStateNames.begin(), kStateNames.end(),
                      [&](const auto& entry) { return entry.first == state; })
      ->second;
}

int64_t unix_time_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

void set_state(JobHost& host, HostState state, const std::string& reason) {
  host.state = state;
  host.since_ns = unix_time_ns();
  host.reason = reason;
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
          .hosts = hosts_text};
}

json public_view(const JobRecord& job) {
  json hosts = json::array();
  for (const JobHost& host : job.hosts) hosts.push_back(to_json(host));
  json nodes = json::array();
  for (const JobNodePlace& node : job.nodes) nodes.push_back(to_json(node));
  json view = {{"job", job.id},
               {"uid", job.user.uid},
               {"allocation", job.allocation},
               {"launcher_pid", job.launcher.pid}};
  // An initializer list would copy the hosts.
  view["hosts"] = std::move(hosts);
  view["nodes"] = std::move(nodes);
  if (job.protection.every_ms > 0) view["protection"] = to_json(job.protection);
  return view;
}

json to_json(const JobRecord& job) {
  json record = public_view(job);
  record["gid"] = job.user.gid;
  record["groups"] = job.user.groups;
  record["token"] = job.token;
  record["launcher_start_time"] = job.launcher.start_time;
  record["boot_id"] = job.boot_id;
  record["port_address"] = job.port_address;
  record["ending"] = job.ending;
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
                         .state = parse_state(host.at("state")),
                         .since_ns = host.at("since_ns"),
                         .reason = host.at("reason"),
                         .failed_moves = host.at("failed_moves")});
  }
  for (const auto& node : json.at("nodes")) job.nodes.push_back(parse_node(node));
  if (const auto found = json.find("protection"); found != json.end()) {
    job.protection = parse_job_protection(*found);
  }
  return job;
}

}  // namespace ppmr
