#include "jobs/agent/host_nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

json to_json(const HostNode& node) {
  return {{"spec", to_json(node.spec)},
          {"holder", to_json(node.holder)},
          {"expected", node.expected},
          {"moving_to", node.moving_to},
          {"migration", node.migration}};
}

Result<HostNode> parse_host_node(const json& json) {
  try {
    auto spec = parse_node_spec(json.at("spec"));
    if (!spec) return failure(spec.error());
    return HostNode{.spec = std::move(*spec),
                    .holder = parse_step_holder(json.at("holder")),
                    .expected = json.at("expected"),
                    .moving_to = json.at("moving_to"),
                    .migration = json.at("migration")};
  } catch (const json::exception& error) {
    return failure(EPROTO, error.what());
  }
}

}  // namespace

HostNodes::HostNodes(JobNodeOptions options, RecordFiles records)
    : options_(std::move(options)), records_(std::move(records)) {
  for (const json& record : records_.read_all()) {
    auto node = parse_host_node(record);
    if (node) {
      const std::string container = node->spec.container();
      entries_[container] = {.node = std::move(*node)};
    } else {
      spdlog::error("skipped the record of a job node: {}", node.error().message);
    }
  }
}

Status HostNodes::save(const HostNode& node) const {
  return records_.write(node.spec.container(), to_json(node));
}

Status HostNodes::create(const NodeSpec& spec, const StepHolder& holder, bool expected,
                         const std::string& migration) {
  const std::string container = spec.container();
  const HostNode node{.spec = spec, .holder = holder, .expected = expected, .migration = migration};
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    if (entries_.contains(container)) {
      return failure(EEXIST, "the job node " + container + " exists here already");
    }
    for (const auto& [name, entry] : entries_) {
      if (entry.node.spec.address == spec.address) {
        return failure(EADDRINUSE, "create the job node " + container + ": job node " + name +
                                       " has its address " + spec.address);
      }
    }
    number = ++entries_made_;
    entries_[container] = {.node = node, .busy = true, .number = number};
  }
  const Claim claim(*this, container, number);
  // Saves the node first: if the agent dies now, the next agent removes the parts of the node.
  Status made = save(node);
  const JobNode job_node(options_, spec, holder.group);
  if (made) made = job_node.prepare();
  if (made && !expected) made = job_node.start();
  if (made) return {};
  if (Status removed = remove_claimed(container); !removed) {
    spdlog::error("{}: {}", container, removed.error().message);
  }
  return made;
}

Status HostNodes::remove(const std::string& container) {
  auto claimed = claim(container);
  if (!claimed && claimed.error().errno_value == ENOENT) return {};
  if (!claimed) return failure(claimed.error());
  return remove_claimed(container);
}

Status HostNodes::stop(const std::string& container) {
  const auto claimed = claim(container);
  if (!claimed && claimed.error().errno_value == ENOENT) return {};
  if (!claimed) return failure(claimed.error());
  const auto node = find(container);
  if (!node) return {};
  // Records this before the processes end. Otherwise a new agent would report the end of the node
  // as a loss.
  Status stopped = change(container, [](HostNode& changed) { changed.expected = true; });
  if (stopped) stopped = JobNode(options_, node->spec, node->holder.group).stop();
  return stopped;
}

Status HostNodes::remove_claimed(const std::string& container) {
  auto node = find(container);
  if (!node) return {};
  if (Status removed = JobNode(options_, node->spec, node->holder.group).remove(); !removed)
    return removed;
  MutexLock lock(mutex_);  // also keeps note_arrival() from writing the record again
  records_.remove(container);
  entries_.erase(container);
  return {};
}

std::vector<HostNode> HostNodes::list() const {
  MutexLock lock(mutex_);
  std::vector<HostNode> nodes;
  for (const auto& [container, entry] : entries_) nodes.push_back(entry.node);
  return nodes;
}

Result<HostNode> HostNodes::find(const std::string& container) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(container);
  if (found == entries_.end())
    return failure(ENOENT, "there is no job node " + container + " on this host");
  return found->second.node;
}

Result<HostNodes::Claim> HostNodes::claim(const std::string& container) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(container);
  if (found == entries_.end())
    return failure(ENOENT, "there is no job node " + container + " on this host");
  if (found->second.busy) {
    return failure(EBUSY, "the job node " + container + " is being changed: try again");
  }
  found->second.busy = true;
  return Claim(*this, container, found->second.number);
}

HostNodes::Claim::~Claim() {
  if (nodes_ == nullptr) return;
  MutexLock lock(nodes_->mutex_);
  const auto found = nodes_->entries_.find(container_);
  if (found != nodes_->entries_.end() && found->second.number == entry_) {
    found->second.busy = false;
  }
}

Status HostNodes::change(const std::string& container,
                         const std::function<void(HostNode&)>& change) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(container);
  if (found == entries_.end())
    return failure(ENOENT, "there is no job node " + container + " on this host");
  HostNode changed = found->second.node;
  change(changed);
  if (Status saved = save(changed); !saved) return saved;
  found->second.node = std::move(changed);
  return {};
}

Status HostNodes::note_move(const std::string& container, const std::string& to,
                            const std::string& migration) {
  return change(container, [&](HostNode& node) {
    node.moving_to = to;
    node.migration = migration;
  });
}

Result<std::string> HostNodes::why_ended(const HostNode& node) const {
  if (node.expected || !node.moving_to.empty()) return "";
  if (node.holder.process.pid != 0 && !is_alive(node.holder.process)) {
    return fmt::format("the step of job {} that held the host has ended", node.spec.allocation);
  }
  auto ended = JobNode(options_, node.spec, node.holder.group).has_ended();
  if (!ended) return failure(ended.error());
  return *ended ? "all of its processes have ended" : "";
}

Status HostNodes::note_arrival(const std::string& container) {
  return change(container, [](HostNode& node) {
    node.expected = false;
    node.migration.clear();
  });
}

}  // namespace ppmr
