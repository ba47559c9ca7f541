#include "cli/doctor/criu_checks.h"

#include <fmt/format.h>

namespace ppmr {
namespace {

// Debian 12's CRIU supports the vDSO only of kernels up to Debian 12's own.
bool is_too_old_for_kernel(const NodeFacts& facts) {
  return facts.criu_version.starts_with("3.") && !facts.kernel.starts_with("6.1.") &&
         !facts.kernel.starts_with("5.");
}

}  // namespace

Diagnoses check_criu(const NodeFacts& facts, const std::string& why_none) {
  if (facts.criu_path.empty()) {
    return {problem("criu", "no CRIU was found: " + why_none,
                    "Install Debian's criu, or set PPMR_CRIU to the path of one")};
  }
  const std::string which = fmt::format(
      "CRIU {} in {}", facts.criu_version.empty() ? "of unknown version" : facts.criu_version,
      facts.criu_path);
  if (facts.user != 0) {
    return {warning("criu",
                    fmt::format("{} was not tried: `criu check` needs the rights of root", which),
                    "Run ppmr doctor as root")};
  }
  if (!facts.criu_problem.empty() && is_too_old_for_kernel(facts)) {
    return {problem("criu",
                    fmt::format("{} does not work on the kernel {}: {}; CRIU 3.17 works only on "
                                "kernels as old as Debian 12's own",
                                which, facts.kernel, facts.criu_problem),
                    "Install CRIU 4.2 or later, and set PPMR_CRIU to its path")};
  }
  if (!facts.criu_problem.empty()) {
    return {problem("criu",
                    fmt::format("{} does not work on the kernel {}: {}", which, facts.kernel,
                                facts.criu_problem),
                    fmt::format("Run `{} check` as root: its last lines name what is missing",
                                facts.criu_path))};
  }
  Diagnoses found = {ok("criu", fmt::format("{} works on the kernel {}", which, facts.kernel))};
  if (!facts.has_feature(kLazyFeature)) {
    found.push_back(
        warning("criu-lazy",
                "CRIU cannot restore a process on this kernel before all of its memory is there",
                "Move processes to this node with --eager"));
  }
  return found;
}

}  // namespace ppmr
