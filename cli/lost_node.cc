#include "cli/lost_node.h"

#include <fmt/format.h>

#include <chrono>
#include <iostream>

#include "daemon/command_line/output.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kFencePatience{120};

}  // namespace

std::string node_name(const std::string& peer) {
  const size_t space = peer.rfind(' ');
  return space == std::string::npos ? peer : peer.substr(space + 1);
}

Status confirm_lost(const std::string& name) {
  print_to(stderr, "Type the name of the lost node ({}) to go on: ",
           name.empty() ? "it is unknown: type `unknown`" : name);
  std::string typed;
  std::getline(std::cin, typed);
  if (typed == (name.empty() ? "unknown" : name)) return {};
  return failure(ECANCELED, "nothing was changed: the typed name is not the name of the lost node");
}

Status run_fence(const std::string& fence) {
  if (fence.empty()) return {};
  const auto done = run_command({"/bin/sh", "-c", fence}, kFencePatience);
  if (!done) return failure(done.error().errno_value, "--fence: " + done.error().message);
  if (done->succeeded) return {};
  return failure(
      EBUSY,
      fmt::format("nothing was changed: --fence {}, so the other node may be alive", done->ending));
}

}  // namespace ppmr
