// What the home of a job that is suspended, or goes on, asks of a host.
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

struct NodeFile {
  uint64_t epoch = 0;
  std::string directory;
  std::string name;
};

Result<NodeFile> parse_node_file(const json& request, unsigned index) {
  const std::string suspension = request.at("suspension");
  NodeFile file{.epoch = request.at("number"),
                .directory = request.at("directory"),
                .name = node_file(suspension, index)};
  if (file.directory.starts_with('/') && is_suspension_id(suspension)) return file;
  return failure(EINVAL, "the request does not name the files of a suspension");
}

// What is encrypted with several keys could be read only where all of them are.
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

json JobAgent::answer_suspender(const std::string& op, const json& request) {
  const std::string container = request.at("container");
  if (!is_job_container(container)) {
    return refusal({EINVAL, "'" + container + "' is not the name of a job node"});
  }
  if (op == "suspend-stop") return answer_of(stop_suspended(container));
  const uint64_t number = request.at("number");
  if (op == "suspend-hold") return answer_of(epochs_.hold(container, number));
  if (op == "suspend-let-go") {
    files_.cancel(container);
    return answer_of(epochs_.let_go(container, number));
  }
  const auto node = nodes_.find(container);
  if (!node) return refusal(node.error());
  const bool writes = op == "suspend-write";
  if (!writes && op != "resume-read") {
    return refusal({EINVAL, "unknown request '" + op + "'"});
  }
  const auto done = writes ? write_suspended(*node, request) : read_suspended(*node, request);
  if (!done) return refusal(done.error());
  return {{"ok", true}, {"pending", !*done}};
}

Result<bool> JobAgent::write_suspended(const HostNode& node, const json& request) {
  const std::string container = node.spec.container();
  const auto file = parse_node_file(request, node.spec.index);
  if (!file) return failure(file.error());
  if (Status held = epochs_.hold(container, file->epoch); !held) return failure(held.error());
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  if (!files_.runs(container)) {
    const Status same = check_key(options_.home.suspension, request.at("key_id"));
    if (!same) return failure(same.error());
    const auto locked = epochs->lock(container);
    if (!locked) return failure(locked.error());
    if (Status noted = note_state_of(*locked, file->epoch); !noted) return failure(noted.error());
  }
  return files_.await(
      container,
      kept_directory_command(options_.home.suspension, node.spec.user, KeptDirection::kWrite,
                             epochs->epoch_directory(container, file->epoch), file->directory,
                             file->name),
      kFilePatience);
}

Result<bool> JobAgent::read_suspended(const HostNode& node, const json& request) {
  const std::string container = node.spec.container();
  const auto file = parse_node_file(request, node.spec.index);
  if (!file) return failure(file.error());
  if (!node.expected) return failure(EBUSY, "the node runs here already");
  const auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  if (!files_.runs(container)) {
    auto earlier = epochs->lock(container);
    if (!earlier) return failure(earlier.error());
    if (Status gone = earlier->discard(); !gone) return failure(gone.error());
  }
  auto locked = epochs->lock(container);
  if (!locked) return failure(locked.error());
  const auto done = files_.await(
      container,
      kept_directory_command(options_.home.suspension, node.spec.user, KeptDirection::kRead,
                             epochs->epoch_directory(container, file->epoch), file->directory,
                             file->name),
      kFilePatience);
  if (!done || !*done) return done;
  Status adopted = adopt_epoch(*locked, container, file->epoch, target_mount());
  if (!adopted) return failure(adopted.error());
  return true;
}

// The processes are killed while CRIU holds them, so none runs on from its epoch.
Status JobAgent::stop_suspended(const std::string& container) {
  files_.cancel(container);
  const auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  // Fails if they have ended already; stop() reports what matters.
  (void)run_command({runc->path(), "kill", "--all", container, "KILL"}, kKillPatience);
  epochs_.end(container);
  return nodes_.stop(container);
}

}  // namespace ppmr
