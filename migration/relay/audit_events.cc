#include "migration/relay/audit_events.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "daemon/audit/audit_trail.h"
#include "daemon/command_line/output.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using nlohmann::json;

json describe(const OwnershipRecord& record, const std::string& outcome) {
  json line = {{"outcome", outcome},
               {"migration", record.id},
               {"role", to_string(record.role)},
               {"peer", record.peer}};
  if (record.plan.is_rehearsal) line["rehearsal"] = true;
  return line;
}

}  // namespace

void audit(const std::string& audit_file, const std::string& event, const json& details) {
  auto trail = AuditTrail::open(audit_file);
  if (!trail) {
    print_to(stderr, "ppmr: {}; the line is in syslog\n", trail.error().message);
    trail = AuditTrail::open("");
  }
  (*trail)->write(event, details);
}

void audit_migration(const OwnershipRecord& record, const std::string& outcome,
                     const json& details) {
  json line = describe(record, outcome);
  line.update(details);
  auto trees = json::array();
  for (const TreeRecord& tree : record.trees) {
    json shown = {{"pid", tree.root}, {"name", tree.name}, {"checkpoint", tree.checkpoint}};
    if (!tree.container.name.empty()) shown["container"] = tree.container.name;
    trees.push_back(std::move(shown));
  }
  line["trees"] = std::move(trees);
  audit(record.audit_file, "migration", line);
}

void audit_restart(const OwnershipRecord& record, size_t tree, const std::string& outcome,
                   const std::string& reason) {
  json details = describe(record, outcome);
  if (!reason.empty()) details["reason"] = reason;
  const TreeRecord& restored = record.trees.at(tree);
  details["pid"] = restored.root;
  details["name"] = restored.name;
  details["checkpoint"] = restored.checkpoint;
  details["uids"] = users_of(restored.tasks);
  audit(record.audit_file, "restart", details);
}

std::vector<uid_t> users_of(const std::vector<ProcessIdentity>& tasks) {
  std::set<uid_t> users;
  for (const ProcessIdentity& task : tasks) {
    const auto status = read_process_status(task.pid);
    if (!status) continue;
    users.insert(status->real_uid);
    users.insert(status->effective_uid);
  }
  return {users.begin(), users.end()};
}

}  // namespace ppmr
