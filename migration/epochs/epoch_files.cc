#include "migration/epochs/epoch_files.h"

#include <unistd.h>

#include "base/json_text.h"
#include "base/parse_json.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr const char* kStateFile = "/state.json";

}  // namespace

Status note_state_of(const LockedEpochs& locked, uint64_t number) {
  EpochState state = locked.state();
  const auto epoch = find_epoch(state, number);
  if (!epoch) return failure(epoch.error());
  state.newest = *epoch;
  state.older.clear();
  state.takeover.clear();
  return write_whole_file(locked.epoch_directory(number) + kStateFile, json_text(to_json(state)),
                          O_TRUNC, 0600);
}

Result<EpochState> read_noted_state(const std::string& directory) {
  const std::string path = directory + kStateFile;
  const auto text = read_whole_file(path);
  if (!text) return failure(text.error());
  const auto packed = parse_json(*text);
  if (!packed.is_object()) return failure(EPROTO, path + " is not the state of an epoch: not JSON");
  auto state = parse_epoch_state(packed);
  if (state) return state;
  return failure(state.error().errno_value, path + ": " + state.error().message);
}

Status adopt_epoch(LockedEpochs& locked, const std::string& name, uint64_t number,
                   const std::string& mountpoint) {
  const std::string directory = locked.epoch_directory(number);
  auto state = read_noted_state(directory);
  if (!state) return failure(state.error());
  if (state->name != name || state->newest.number != number || !is_migration_id(state->run)) {
    return failure(EPROTO, directory + " is not epoch " + std::to_string(number) + " of " + name);
  }
  const std::string memory = locked.directory() + "/memory-" + state->run;
  if (link((directory + "/memory").c_str(), memory.c_str()) != 0) {
    return system_failure("create the link", memory);
  }
  state->mountpoint = mountpoint;
  return locked.write(*state);
}

}  // namespace ppmr
