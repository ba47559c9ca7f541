// The requests that a home sends to a host to suspend a job, or to let a suspended job go on.
#include <fmt/format.h>

#include "jobs/agent/job_agent.h"
#include "migration/epochs/epoch_files.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kFilePatience{1'000};  // the home asks again
constexpr std::chrono::seconds kKillPatience{20};

// Returns the name of the node's file in the directory. Errors: EINVAL: the directory or the ID is
// malformed.
Result<std::string> file_of(const std::string& directory, const std::string& suspension,
                            unsigned index) {
  if (directory.starts_with('/') && is_suspension_id(suspension)) {
    return node_file(suspension, index);
  }
  return failure(EINVAL, fmt::format("'{}' is not an absolute path, or '{}' is not the ID of a "
                                     "suspension",
                                     directory, suspension));
}

json answer_of_long(const Result<bool>& is_done) {
  if (!is_done) return refusal(is_done.error());
  return {{"ok", true}, {"pending", !*is_done}};
}

// Checks that this host encrypts with the same key as the home. Files that were encrypted with
// several keys could be read only on a host that has all of these keys.
Status check_key(const SuspensionOptions& options, const std::string& of_home) {
  const auto own = suspension_key_id(options);
  if (!own) return failure(own.error());
  if (*own == of_home) return {};
  return failure(
      EKEYREJECTED,
      fmt::format("the key in {} is {}, and that of the job's home is {}: all hosts need "
                  "the same",
                  options.key_file, *own, of_home));
}

}  // namespace

json JobAgent::take_step(const host_request::SuspendHold& step) {
  return answer_of(epochs_.hold(step.container, step.number));
}

json JobAgent::take_step(const host_request::SuspendLetGo& step) {
  files_.cancel(step.container);
  return answer_of(epochs_.let_go(step.container, step.number));
}

json JobAgent::take_step(const host_request::SuspendStop& step) {
  return answer_of(stop_suspended(step.container));
}

json JobAgent::take_step(const host_request::SuspendWrite& step) {
  return answer_of_long(write_suspended(step));
}

json JobAgent::take_step(const host_request::ResumeRead& step) {
  return answer_of_long(read_suspended(step));
}

Result<bool> JobAgent::write_suspended(const host_request::SuspendWrite& step) {
  const std::string& container = step.container;
  const auto node = nodes_.find(container);
  if (!node) return failure(node.error());
  const auto file = file_of(step.directory, step.suspension, node->spec.index);
  if (!file) return failure(file.error());
  if (Status held = epochs_.hold(container, step.number); !held) return failure(held.error());
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  if (!files_.runs(container)) {
    const Status same = check_key(options_.home.suspension, step.key_id);
    if (!same) return failure(same.error());
    const auto locked = epochs->lock(container);
    if (!locked) return failure(locked.error());
    if (Status noted = note_state_of(*locked, step.number); !noted) return failure(noted.error());
  }
  return files_.await(container,
                      kept_directory_command(
                          options_.home.suspension, node->spec.user, KeptDirection::kWrite,
                          epochs->epoch_directory(container, step.number), step.directory, *file),
                      kFilePatience);
}

Result<bool> JobAgent::read_suspended(const host_request::ResumeRead& step) {
  const std::string& container = step.container;
  const auto node = nodes_.find(container);
  if (!node) return failure(node.error());
  const auto file = file_of(step.directory, step.suspension, node->spec.index);
  if (!file) return failure(file.error());
  if (!node->expected) {
    return failure(EBUSY, "job node " + container + " runs on this host already");
  }
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  if (!files_.runs(container)) {
    auto earlier = epochs->lock(container);
    if (!earlier) return failure(earlier.error());
    if (Status gone = earlier->discard(); !gone) return failure(gone.error());
  }
  auto locked = epochs->lock(container);
  if (!locked) return failure(locked.error());
  const auto done =
      files_.await(container,
                   kept_directory_command(
                       options_.home.suspension, node->spec.user, KeptDirection::kRead,
                       epochs->epoch_directory(container, step.number), step.directory, *file),
                   kFilePatience);
  if (!done || !*done) return done;
  Status adopted = adopt_epoch(*locked, container, step.number, target_mount());
  if (!adopted) return failure(adopted.error());
  return true;
}

// Kills the processes while CRIU holds them, so that none of them runs on from its epoch.
Status JobAgent::stop_suspended(const std::string& container) {
  files_.cancel(container);
  const auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  // This fails if the processes have ended already. stop() reports whether the node has ended.
  (void)run_command({runc->path(), "kill", "--all", container, "KILL"}, kKillPatience);
  epochs_.end(container);
  return nodes_.stop(container);
}

}  // namespace ppmr
