// Findings about a runc container. The findings about its processes are elsewhere
// (preflight_tree.cc).
#include "preflight/preflight_findings.h"

namespace ppmr {

void check_container(const TreeFacts& tree, Findings& findings) {
  const ContainerFacts& container = *tree.container;
  const std::string name = "the container " + container.state.name;
  if (container.state.status != "running") {
    findings.stop(fmt::format("{} is {}", name, container.state.status),
                  container.state.status == "paused"
                      ? "resume it first (runc resume)"
                      : "start it first: only a running container can be moved");
  }
  if (container.bundle.terminal) {
    findings.stop(name + " has a terminal, which does not move with it",
                  "run it with \"terminal\": false in its config.json");
  }
  if (!container.exec_processes.empty()) {
    const bool one = container.exec_processes.size() == 1;
    findings.stop(
        fmt::format("the {} {} {} started in {} by runc exec, and would not be moved with it",
                    one ? "process" : "processes", list_of(container.exec_processes),
                    one ? "was" : "were", name),
        fmt::format("end {} first", one ? "it" : "them"));
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
    findings.stop(
        name + " already exists at the target",
        fmt::format("if it is not needed, run `runc delete {}` there", container.state.name));
  }
  const std::string& bundle = container.bundle.directory;
  if (answer.bundle == BundleVerdict::kMissing) {
    findings.stop(fmt::format("the bundle {} of {} is not at the target", bundle, name),
                  "copy it there, or keep it on a shared file system");
  } else if (answer.bundle == BundleVerdict::kOther) {
    findings.stop(fmt::format("{}/config.json of {} differs at the target", bundle, name),
                  "copy the bundle to the target");
  }
  if (!answer.paths_missing.empty()) {
    findings.stop(
        fmt::format("the target lacks {}, which {} needs", list_of(answer.paths_missing), name),
        "create them there (the container's root file system, sources of its mounts, namespaces "
        "that it joins)");
  }
  if (!answer.interfaces_missing.empty()) {
    findings.stop(
        fmt::format("the target lacks the network {} {}, which {} needs",
                    answer.interfaces_missing.size() == 1 ? "interface" : "interfaces",
                    list_of(answer.interfaces_missing), name),
        "create the container's port and the bridge there, and do not attach the port to a bridge");
  }
  if (answer.unified_cgroups != container.unified_cgroups) {
    const auto version = [](bool unified) { return unified ? "version 2" : "version 1"; };
    findings.stop(fmt::format("control groups have {} here and {} at the target",
                              version(container.unified_cgroups), version(answer.unified_cgroups)),
                  "boot both nodes with the same version (kernel parameter "
                  "systemd.unified_cgroup_hierarchy)");
  }
}

}  // namespace ppmr
