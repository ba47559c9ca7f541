// The requests that the home of a protected job sends to a host, for epochs and rollbacks.
#include <fmt/format.h>

#include "jobs/agent/job_agent.h"
#include "migration/epochs/epoch_store.h"
#include "restart_loader/criu/run_command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kTakeoverPatience{170'000};

Status forget(const std::string& container) {
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  auto locked = epochs->lock(container);
  if (!locked) return failure(locked.error());
  return locked->discard();
}

}  // namespace

json JobAgent::take_step(const host_request::EpochBegin& step) {
  const auto node = nodes_.find(step.container);
  if (!node) return refusal(node.error());
  if (node->expected || !node->moving_to.empty()) {
    return refusal({EBUSY, "job node " + step.container + " does not run on this host now"});
  }
  if (!step.partner.empty() && !is_host_name(step.partner)) {
    return refusal({EINVAL, "'" + step.partner + "' is not the name of a host"});
  }
  return answer_of(epochs_.begin(
      step.container,
      {.number = step.number, .oldest = step.oldest, .partner = step.partner, .hold = step.hold}));
}

json JobAgent::take_step(const host_request::EpochFreeze& step) {
  return answer_of(epochs_.freeze(step.container, step.number));
}

json JobAgent::take_step(const host_request::EpochGo& step) {
  return answer_of(epochs_.go(step.container, step.number, step.keep));
}

json JobAgent::take_step(const host_request::EpochAwait& step) {
  const auto report = epochs_.await(step.container, step.number, step.step);
  if (!report) return refusal(report.error());
  if (!*report) return {{"ok", true}, {"pending", true}};
  return {{"ok", true},
          {"bytes", (*report)->bytes},
          {"sent_bytes", (*report)->sent_bytes},
          {"pause_ms", (*report)->pause_ms}};
}

json JobAgent::take_step(const host_request::EpochForward& step) {
  if (!is_host_name(step.to)) {
    return refusal({EINVAL, "'" + step.to + "' is not the name of a host"});
  }
  return answer_of(epochs_.forward(step.container, step.number, step.to));
}

json JobAgent::take_step(const host_request::EpochEnd& step) {
  epochs_.end(step.container);
  files_.cancel(step.container);
  return answer_of(forget(step.container));
}

json JobAgent::take_step(const host_request::RollbackStop& step) {
  epochs_.end(step.container);
  return answer_of(nodes_.stop(step.container));
}

json JobAgent::take_step(const host_request::RollbackRun& step) {
  return answer_of(run_from_epoch(step.container, step.number));
}

// Lets the node run from its epoch. `--fence true`: the home has made sure that all processes of
// the node are dead, on every host.
Status JobAgent::run_from_epoch(const std::string& container, uint64_t number) {
  const auto claim = nodes_.claim(container);
  if (!claim) return failure(claim.error());
  const auto taken = run_successfully(
      {options_.evacuation.program, "takeover", container, "--epoch", std::to_string(number),
       "--fence", "true", "--roll-back", "--state-dir", options_.evacuation.state_directory},
      kTakeoverPatience);
  if (!taken) return failure(taken.error());
  spdlog::info("{} goes on from epoch {}", container, number);
  return nodes_.note_arrival(container);
}

}  // namespace ppmr
