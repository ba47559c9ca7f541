#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "migration/records/record_store.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// `ppmr takeover`, at the partner: lists the protected processes that it keeps, and lets one of
// them run here when its node is lost.
struct TakeoverCommand {
  std::string name;  // empty: list
  bool discard = false;
  bool copy = false;        // a copy runs here beside its source, which goes on
  uint64_t epoch = 0;       // the number of the epoch; 0: the newest
  bool cuts_files = false;  // --truncate
  bool rolls_back = false;  // the home of a job rolls back all nodes of the job, this one included
  std::string fence;
  std::string instead_of;  // the partner that takes over before this one
  // Waits until the source has been silent for so long. nullopt: does not wait.
  std::optional<std::chrono::milliseconds> dead_after;
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  int run() const;  // returns the exit code
};

void add_takeover_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
