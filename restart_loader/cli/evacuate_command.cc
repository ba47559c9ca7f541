// `ppmr evacuate`: selects what is to leave this node, says what stays and why, and migrates.
#include "restart_loader/cli/evacuate_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "mount/control/json_text.h"
#include "restart_loader/migration/command_error.h"
#include "restart_loader/migration/output.h"

namespace ppmr {
namespace {

using nlohmann::json;

void tell(const ProcessSelection& selection, bool as_json) {
  if (as_json) {
    json leave = json::array();
    for (const SelectedTree& tree : selection.trees) {
      leave.push_back({{"pid", tree.root}, {"name", tree.name}, {"command", tree.command_line}});
    }
    json stay = json::array();
    for (const LeftOut& left : selection.left_out) {
      stay.push_back({{"pid", left.pid}, {"name", left.name}, {"reason", left.reason}});
    }
    print_to(stdout, "{}\n",
             json_text({{"event", "selection"},
                        {"time_ns", realtime_ns()},
                        {"leave", leave},
                        {"stay", stay}}));
    return;
  }
  for (const SelectedTree& tree : selection.trees) {
    print_to(stderr, "leaves: {} ({})\n", tree.root, tree.name);
  }
  for (const LeftOut& left : selection.left_out) {
    print_to(stderr, "stays: {} ({}) {}\n", left.pid, left.name, left.reason);
  }
}

}  // namespace

int EvacuateCommand::run() const {
  ignore_sigpipe();
  const auto selection = select_processes(selector);
  if (!selection) {
    return report("evacuate", {ExitCode::kUsage, selection.error().message}, migrate.json);
  }
  tell(*selection, migrate.json);
  if (selection->trees.empty()) {
    if (!migrate.json) print_to(stdout, "nothing to move: no process matches\n");
    return to_int(ExitCode::kSuccess);
  }
  MigrateCommand move = migrate;
  move.name = "evacuate";
  move.independent = !together;
  for (const SelectedTree& tree : selection->trees) move.pids.push_back(tree.root);
  return move.run();
}

}  // namespace ppmr
