// What stops the move of a container of runc's, beside what its processes are stopped by.
#include "restart_loader/preflight/preflight_findings.h"

namespace ppmr {

void check_container(const TreeFacts& tree, Findings& findings) {
  const ContainerFacts& container = *tree.container;
  const std::string name = "the container " + container.state.name;
  if (container.state.status != "running") {
    findings.stop(fmt::format("{} is {}", name, container.state.status),
                  container.state.status == "paused" ? "let it go on first (runc resume)"
                                                     : "only a running one can be moved");
  }
  if (container.bundle.terminal) {
    findings.stop(name + " has a terminal, and nobody at the target would have its other end",
                  "run it with \"terminal\": false in its config.json");
  }
  if (!container.outsiders.empty()) {
    findings.stop(fmt::format("the processes {} were put into {} from outside (runc exec), and "
                              "would not be moved with it",
                              list_of(container.outsiders), name),
                  "let them end first");
  }
}

void check_container_at_target(const TreeFacts& tree, const ContainerAnswer& answer,
                               Findings& findings) {
  const ContainerFacts& container = *tree.container;
  const std::string name = "the container " + container.state.name;
  if (!answer.runc_problem.empty()) {
    findings.stop("runc does not work at the target: " + answer.runc_problem,
                  "install Debian's runc there");
  } else if (answer.runc_version != container.runc_version) {
    findings.warn(fmt::format("runc is {} here and {} at the target", container.runc_version,
                              answer.runc_version));
  }
  if (answer.name_taken) {
    findings.stop(name + " is there at the target already",
                  fmt::format("if it is not needed: runc delete {} there", container.state.name));
  }
  const std::string& bundle = container.bundle.directory;
  if (answer.bundle == BundleVerdict::kMissing) {
    findings.stop(fmt::format("the bundle {} of {} is not at the target", bundle, name),
                  "copy it there, or keep it on a file system of both nodes");
  } else if (answer.bundle == BundleVerdict::kOther) {
    findings.stop(fmt::format("{}/config.json of {} is another one at the target", bundle, name),
                  "copy the bundle there as it is here");
  }
  if (!answer.paths_missing.empty()) {
    findings.stop(fmt::format("{} needs {} at the target", name, list_of(answer.paths_missing)),
                  "make them there: its root file system, what is mounted into it, namespaces that "
                  "it joins");
  }
  if (answer.unified_cgroups != container.unified_cgroups) {
    const auto version = [](bool unified) { return unified ? "version 2" : "version 1"; };
    findings.stop(fmt::format("control groups are of {} here and of {} at the target",
                              version(container.unified_cgroups), version(answer.unified_cgroups)),
                  "boot both nodes with the same (systemd.unified_cgroup_hierarchy)");
  }
}

}  // namespace ppmr
