#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrate --recover [ID]`: finishes or aborts the interrupted migrations in this node's
// records, and prints their states.
struct RecoverCommand {
  std::string digits;  // the ID or its first digits; empty: all migrations
  std::string state_directory = kDefaultStateDirectory;
  // Time limit to reach the peer, for each migration.
  std::optional<std::chrono::milliseconds> timeout;
  bool json = false;

  int run() const;  // returns kSuccess only when no migration remains open
};

}  // namespace ppmr
