#include "cli/timeline_command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/screen/terminal_text.h"
#include "cli/timeline/timeline.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"

namespace ppmr {
namespace {

constexpr size_t kColumnsOfFile = 100;

CommandResult<OwnershipRecord> choose(const std::vector<OwnershipRecord>& records,
                                      const std::string& id, const std::string& directory) {
  const OwnershipRecord* chosen = nullptr;
  for (const OwnershipRecord& record : records) {  // the oldest record comes first
    if (!record.id.starts_with(id)) continue;
    if (chosen != nullptr && !id.empty() && chosen->id != record.id) {
      return command_failure(
          ExitCode::kUsage,
          fmt::format("{} is the beginning of several IDs, {} and {}: give more digits", id,
                      chosen->id, record.id));
    }
    // The record of the source has the times of both nodes.
    const bool knows_less =
        chosen != nullptr && chosen->id == record.id && record.role == MigrationRole::kTarget;
    if (!knows_less) chosen = &record;
  }
  if (chosen != nullptr) return *chosen;
  const std::string what = id.empty() ? "no migration" : "no migration with the ID " + id;
  return command_failure(ExitCode::kUsage,
                         fmt::format("{} has a record in {}: the records are on the nodes of the "
                                     "migration; ppmr migrate --recover lists them",
                                     what, directory));
}

size_t columns_of_stdout() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kColumnsOfFile;
}

}  // namespace

int TimelineCommand::run() const {
  const auto failed = [](const CommandError& error) { return report("timeline", error, false); };
  if (id.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return failed({ExitCode::kUsage, "'" + id +
                                         "' is not the ID of a migration: an ID has up to 32 "
                                         "digits of 0-9 and a-f"});
  }
  std::vector<OwnershipRecord> records;
  if (access(state_directory.c_str(), F_OK) == 0) {  // because open() would create it
    auto store = RecordStore::open(state_directory);
    if (!store) return failed({ExitCode::kFailure, store.error().message});
    auto found = store->list();
    if (!found) return failed({ExitCode::kFailure, found.error().message});
    records = std::move(*found);
  }
  const auto record = choose(records, id, state_directory);
  if (!record) return failed(record.error());
  const auto timeline = make_timeline(*record);
  if (!timeline) return failed({ExitCode::kFailure, timeline.error().message});
  const bool utf8 = charset_of_environment() == Charset::kUtf8;
  print_to(stdout, "{}",
           text ? timeline_text(*timeline, columns_of_stdout(), utf8) : timeline_svg(*timeline));
  return to_int(std::ferror(stdout) != 0 ? ExitCode::kFailure : ExitCode::kSuccess);
}

}  // namespace ppmr
