#include "cli/timeline_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "cli/find_migration.h"
#include "cli/timeline/picture_file.h"
#include "cli/timeline/timeline.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/terminal_text.h"

namespace ppmr {
namespace {

constexpr size_t kColumnsOfFile = 100;

// Writes the picture into the working directory, and returns its path.
Result<std::string> write_picture_here(const std::string& id, const std::string& svg) {
  std::error_code error;
  const auto directory = std::filesystem::current_path(error);
  if (error) return system_failure("find", "the working directory", error.value());
  return write_picture(directory, id, svg);
}

CommandResult<OwnershipRecord> choose(const std::vector<OwnershipRecord>& records,
                                      const std::string& digits, const std::string& directory) {
  const OwnershipRecord* chosen = nullptr;
  std::string id;  // empty: the last migration
  if (!digits.empty()) {
    auto found = choose_id(records, digits, directory);
    if (!found) return tl::unexpected(found.error());
    id = std::move(*found);
  }
  for (const OwnershipRecord& record : records) {  // the oldest record comes first
    if (!id.empty() && record.id != id) continue;
    // Prefers the record of the source, which has the times of both nodes.
    const bool knows_less =
        chosen != nullptr && chosen->id == record.id && record.role == MigrationRole::kTarget;
    if (!knows_less) chosen = &record;
  }
  if (chosen != nullptr) return *chosen;
  return command_failure(ExitCode::kUsage,
                         fmt::format("no migration has a record in {}: the records are on the "
                                     "nodes of the migration: run it there, or name its "
                                     "--state-dir",
                                     directory));
}

size_t columns_of_stdout() {
  const size_t columns = columns_of_output(stdout);
  return columns > 0 ? columns : kColumnsOfFile;
}

}  // namespace

int TimelineCommand::run() const {
  const auto failed = [](const CommandError& error) { return report("timeline", error, false); };
  std::vector<OwnershipRecord> records;
  if (access(state_directory.c_str(), F_OK) == 0) {  // open() would create the directory
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
  const bool as_text = text || isatty(STDOUT_FILENO) != 0;
  print_whole(
      stdout, "{}",
      as_text ? timeline_text(*timeline, columns_of_stdout(), utf8) : timeline_svg(*timeline));
  if (as_text && !text) {
    const auto picture = write_picture_here(record->id, timeline_svg(*timeline));
    if (picture) {
      print_to(stderr, "the picture (SVG): {}\n", *picture);
    } else {
      print_to(stderr, "no picture (SVG): {}; `ppmr timeline {} >FILE.svg` writes it elsewhere\n",
               picture.error().message, record->id.substr(0, 8));
    }
  }
  return to_int(std::ferror(stdout) != 0 ? ExitCode::kFailure : ExitCode::kSuccess);
}

}  // namespace ppmr
