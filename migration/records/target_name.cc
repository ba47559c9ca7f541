#include "migration/records/target_name.h"

#include <fmt/format.h>

namespace ppmr {
namespace {

std::string describe(const TargetName& node) {
  return node.node_id.empty() ? node.name
                              : fmt::format("{} (machine ID {})", node.name, node.node_id);
}

bool is_same_node(const TargetName& known, const TargetName& answering) {
  if (!known.node_id.empty() && !answering.node_id.empty()) {
    return known.node_id == answering.node_id;
  }
  return known.name.empty() || known.name == answering.name;
}

}  // namespace

Status check_denial(const TargetName& known, const TargetName& answering, const std::string& id) {
  if (!is_same_node(known, answering)) {
    return failure(EXDEV, fmt::format("ask the target {} about migration {}: another node answers, "
                                      "{}. Mount the target {} again; if it is lost for good, run "
                                      "`ppmr migrate --resolve {}` (ppmr-migrate(8))",
                                      describe(known), id, describe(answering), known.name, id));
  }
  if (known.state_directory.empty() || answering.state_directory.empty() ||
      known.state_directory == answering.state_directory) {
    return {};
  }
  return failure(EXDEV, fmt::format("ask the target {} about migration {}: it has no record in {}, "
                                    "because it wrote the record into {}. Start its daemon with "
                                    "--state-dir {}; if that directory is lost for good, run "
                                    "`ppmr migrate --resolve {}` (ppmr-migrate(8))",
                                    describe(known), id, answering.state_directory,
                                    known.state_directory, known.state_directory, id));
}

}  // namespace ppmr
