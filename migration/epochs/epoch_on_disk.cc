#include "migration/epochs/epoch_on_disk.h"

#include <nlohmann/json.hpp>

namespace ppmr {

using nlohmann::json;

json to_json(const EpochOnDisk& on_disk) {
  return {{"file", on_disk.file},
          {"run", on_disk.run},
          {"epoch", on_disk.number},
          {"frozen_ns", on_disk.frozen_ns},
          {"error", on_disk.error}};
}

Result<EpochOnDisk> parse_epoch_on_disk(const json& packed) {
  try {
    return EpochOnDisk{packed.at("file"), packed.at("run"), packed.at("epoch"),
                       packed.at("frozen_ns"), packed.at("error")};
  } catch (const json::exception& error) {
    return failure(EPROTO, error.what());
  }
}

bool is_to_write(const EpochState& state, std::optional<MigrationState> takeover,
                 const EpochOnDisk& on_disk) {
  if (state.newest.number == 0 || state.rolls_back || state.is_copy) return false;
  if (judge_source(takeover) == SourceMay::kNotRun) return false;
  return on_disk.run != state.run || on_disk.number != state.newest.number;
}

bool may_replace(const EpochState& written, const std::optional<EpochState>& now,
                 std::optional<MigrationState> takeover) {
  return now && now->newest.number > 0 && now->tree == written.tree &&
         judge_source(takeover) != SourceMay::kNotRun;
}

Return judge_return(const EpochState& on_disk, const std::optional<EpochState>& here,
                    bool is_taken_over) {
  if (is_taken_over) return Return::kRemove;
  if (!here) return Return::kToMemory;
  // The memory was lost if the source has opened the name again and no epoch has arrived since.
  const bool is_lost = here->newest.number == 0 && here->takeover.empty();
  const bool is_same = here->tree == on_disk.tree && here->peer == on_disk.peer;
  return is_lost && is_same ? Return::kToMemory : Return::kNone;
}

}  // namespace ppmr
