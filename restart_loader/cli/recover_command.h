#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "restart_loader/records/record_store.h"

namespace ppmr {

// `ppmr migrate --recover [ID]`: says how the migrations stand that this node's records know of,
// and finishes or undoes those that were interrupted.
struct RecoverCommand {
  std::string id;  // empty: all
  std::string state_directory = kDefaultStateDirectory;
  std::optional<std::chrono::milliseconds> timeout;  // for each, to reach the other side
  bool json = false;

  int run() const;  // kSuccess only when nothing is open any more
};

// Aborts what a killed coordinator has left before anything was held, and tells the target that
// this way leads to of migrations that are aborted here, where it does not know yet. Failures are
// left for later.
void settle_aborted(const RecordStore& store, const nlohmann::json& way);

}  // namespace ppmr
