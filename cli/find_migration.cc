#include "cli/find_migration.h"

#include <fmt/format.h>

namespace ppmr {

CommandResult<std::string> choose_id(const std::vector<OwnershipRecord>& records,
                                     const std::string& digits, const std::string& directory) {
  if (digits.empty() || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return command_failure(
        ExitCode::kUsage,
        fmt::format("'{}' is not the ID of a migration: an ID has up to 32 "
                    "digits of 0-9 and a-f, and `ppmr history` lists those of this node",
                    digits));
  }
  std::string chosen;
  for (const OwnershipRecord& record : records) {
    if (!record.id.starts_with(digits) || record.id == chosen) continue;
    if (!chosen.empty()) {
      return command_failure(
          ExitCode::kUsage,
          fmt::format("{} is the beginning of several IDs, {} and {}: give more digits", digits,
                      chosen, record.id));
    }
    chosen = record.id;
  }
  if (!chosen.empty()) return chosen;
  return command_failure(ExitCode::kUsage,
                         fmt::format("no migration with the ID {} has a record in {}: the records "
                                     "are on the nodes of the migration; `ppmr migrations` lists "
                                     "those that are open, `ppmr history` all",
                                     digits, directory));
}

CommandResult<OwnershipRecord> find_migration(const RecordStore& store, const std::string& digits,
                                              MigrationRole preferred) {
  const auto records = store.list_for_display(0);
  if (!records) return command_failure(ExitCode::kFailure, records.error().message);
  const auto id = choose_id(*records, digits, store.directory());
  if (!id) return tl::unexpected(id.error());
  const bool is_source = preferred == MigrationRole::kSource;
  auto record = store.read(*id, preferred);
  if (!record) {
    record = store.read(*id, is_source ? MigrationRole::kTarget : MigrationRole::kSource);
  }
  if (!record) return command_failure(ExitCode::kUsage, record.error().message);
  return std::move(*record);
}

}  // namespace ppmr
