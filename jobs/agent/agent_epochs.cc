// What the home of a protected job asks of a host.
#include <fmt/format.h>

#include "jobs/agent/job_agent.h"
#include "migration/epochs/epoch_store.h"
#include "restart_loader/criu/run_command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kTakeoverPatience{170'000};

const json kDone = {{"ok", true}};

Status forget(const std::string& container) {
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  auto locked = epochs->lock(container);
  if (!locked) return failure(locked.error());
  return locked->discard();
}

}  // namespace

json JobAgent::answer_leader(const std::string& op, const json& request) {
  const std::string container = request.at("container");
  if (!is_job_container(container)) {
    return refusal({EINVAL, "'" + container + "' is not the name of a job node"});
  }
  if (op == "epoch-end") {
    epochs_.end(container);
    files_.cancel(container);
    return answer_of(forget(container));
  }
  if (op == "rollback-stop") {
    epochs_.end(container);
    return answer_of(nodes_.stop(container));
  }
  const uint64_t number = request.at("number");
  if (op == "epoch-forward") {
    const std::string to = request.at("to");
    if (!is_host_name(to)) return refusal({EINVAL, "'" + to + "' is not the name of a host"});
    return answer_of(epochs_.forward(container, number, to));
  }
  if (op == "rollback-run") return answer_of(run_from_epoch(container, number));
  const auto node = nodes_.find(container);
  if (!node) return refusal(node.error());
  if (op == "epoch-begin") {
    if (node->expected || !node->moving_to.empty()) {
      return refusal({EBUSY, "the node does not run here now"});
    }
    const std::string partner = request.at("partner");
    if (!partner.empty() && !is_host_name(partner)) {
      return refusal({EINVAL, "'" + partner + "' is not the name of a host"});
    }
    return answer_of(epochs_.begin(container, {.number = number,
                                               .oldest = request.at("oldest"),
                                               .partner = partner,
                                               .hold = request.value("hold", false)}));
  }
  if (op == "epoch-freeze") return answer_of(epochs_.freeze(container, number));
  if (op == "epoch-go") return answer_of(epochs_.go(container, number, request.at("keep")));
  if (op == "epoch-await") {
    const auto report = epochs_.await(container, number, request.at("step"));
    if (!report) return refusal(report.error());
    if (!*report) return {{"ok", true}, {"pending", true}};
    return {{"ok", true},
            {"bytes", (*report)->bytes},
            {"sent_bytes", (*report)->sent_bytes},
            {"pause_ms", (*report)->pause_ms}};
  }
  return refusal({EINVAL, "unknown request '" + op + "'"});
}

// The processes of the node are dead, here and wherever they ran: the home has made sure.
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
