// Lines of the audit trail about migrations and restarts. The record names the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "migration/records/ownership_record.h"

namespace ppmr {

// Writes one line. If the file cannot be opened, the line goes to syslog alone.
void audit(const std::string& audit_file, const std::string& event, const nlohmann::json& details);

// Writes a line about a migration: its id, role, peer and processes, and `details`.
void audit_migration(const OwnershipRecord& record, const std::string& outcome,
                     const nlohmann::json& details);

// Writes a line about a tree whose restore runs on this node.
void audit_restart(const OwnershipRecord& record, size_t tree, const std::string& outcome,
                   const std::string& reason = "");

// Returns the real and effective users of these processes, each once, in order; read from /proc.
std::vector<uid_t> users_of(const std::vector<ProcessIdentity>& tasks);

}  // namespace ppmr
