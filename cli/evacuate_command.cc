// `ppmr evacuate`: selects processes, prints which ones move and which stay, and migrates them.
#include "cli/evacuate_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json_text.h"
#include "cli/migration_report.h"
#include "cli/screen/one_line.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"

namespace ppmr {
namespace {

using nlohmann::json;

void print_selection(const ProcessSelection& selection, bool as_json) {
  if (as_json) {
    json leave = json::array();
    for (const SelectedTree& tree : selection.trees) {
      leave.push_back({{"pid", tree.root}, {"name", tree.name}, {"command", tree.command_line}});
    }
    json stay = json::array();
    for (const ExcludedProcess& process : selection.excluded) {
      stay.push_back({{"pid", process.pid}, {"name", process.name}, {"reason", process.reason}});
    }
    print_whole(stdout, "{}\n",
                json_text({{"event", "selection"},
                           {"time_ns", realtime_ns()},
                           {"leave", leave},
                           {"stay", stay}}));
    return;
  }
  for (const SelectedTree& tree : selection.trees) {
    print_to(stderr, "selected: {} ({})\n", tree.root, one_line(tree.name));
  }
  for (const ExcludedProcess& process : selection.excluded) {
    print_to(stderr, "stays: {} ({}), which {}\n", process.pid, one_line(process.name),
             process.reason);
  }
}

}  // namespace

int EvacuateCommand::run() const {
  ignore_sigpipe();
  if (auto checked = migrate.check_values(); !checked) {
    return report("evacuate", checked.error(), migrate.json);
  }
  const auto selection = select_processes(selector);
  if (!selection) {
    return report("evacuate", {ExitCode::kUsage, selection.error().message}, migrate.json);
  }
  if (!migrate.quiet) print_selection(*selection, migrate.json);
  if (selection->trees.empty()) {
    if (migrate.json) {
      print_whole(stdout, "{}", summary_json({}, {}, ExitCode::kSuccess));
    } else if (!migrate.quiet) {
      print_to(stdout, "no process matches, nothing to move\n");
    }
    return to_int(ExitCode::kSuccess);
  }
  MigrateCommand move = migrate;
  move.name = "evacuate";
  move.independent = !together;
  for (const SelectedTree& tree : selection->trees) move.pids.push_back(tree.root);
  return move.run();
}

}  // namespace ppmr
