// The target mount: accepts sources, stores their checkpoints, and shows them as a file system.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "daemon/audit/audit_trail.h"
#include "daemon/command_line/transport_option.h"
#include "daemon/control/requests.h"
#include "daemon/data_daemon/data_daemon.h"
#include "daemon/metrics/open_migrations.h"
#include "daemon/metrics/outcome_tally.h"
#include "daemon/privilege/confinement.h"
#include "daemon/privilege/privileged_helper.h"
#include "fuse_target/agent_bridge.h"
#include "fuse_target/held_memory.h"
#include "fuse_target/keep/keeper.h"
#include "fuse_target/operations.h"
#include "fuse_target/store/loans.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/session/devices.h"
#include "rdma_stream/session/receiver.h"

namespace ppmr {

struct TargetOptions {
  std::string mountpoint;
  size_t ready_bytes = size_t{1} << 30;
  size_t limit_bytes = 0;
  std::string spill_directory;
  uint64_t spill_limit_bytes = 0;  // 0: no limit
  std::string keep_directory;      // empty: checkpoints end with the daemon
  LockedKeepKeys keep_keys;        // null: no keep directory
  RetentionLimits keep_limits;
  bool lock_memory = false;  // images are never swapped out
  bool consume = false;
  bool wait_for_files = false;
  std::chrono::milliseconds peer_timeout{10'000};
  std::string target_name;
  TransportOptions transport;
  bool allow_restart = false;       // peers may restart processes here
  bool allow_root_restart = false;  // also processes of root, containers and namespaces
  std::string restart_policy;       // path of the policy file; empty: the defaults of RestartPolicy
  bool trusted_fabric = false;      // data needs no encryption if the source agrees
  // The accepted peers that may restart processes here; empty: all accepted peers.
  std::vector<std::string> restart_peers;
  std::shared_ptr<AuditTrail> audit;  // null: no audit trail
  std::string audit_file;             // only shown in the status
  std::shared_ptr<PrivilegedHelper> helper;
  Confinement confinement;  // only shown in the status
};

// Threads: created, served and destroyed by one thread; stop(), answer() and stop_answering() by
// any.
class TargetMount final : public ServedMount {
 public:
  // Accepts sources, and starts to touch the store's memory ahead of need (store_memory.h), but
  // does not mount. Errors: EINVAL for wrong options; those of the spill directory; ENODEV without
  // the requested RDMA device.
  static Result<std::unique_ptr<TargetMount>> create(TargetOptions options,
                                                     std::unique_ptr<Listener> listener);
  ~TargetMount() override;

  // ---- ServedMount. answer() blocks for `commit` and `wait`.
  Status serve(const std::function<void()>& mounted) override;
  void stop() override;
  nlohmann::json answer(const nlohmann::json& request, PassedDescriptors& passed) override;
  void stop_answering() override { tree_.stop_waiting(); }
  const OutcomeTally& outcomes() const override { return restarts_; }

  const std::string& listen_address() const { return receiver_->address(); }

 private:
  struct Parts {  // members of TargetMount whose construction can fail
    std::unique_ptr<Upstream> upstream = std::make_unique<Upstream>();
    std::unique_ptr<Listener> listener;
    std::unique_ptr<SpillDirectory> spill;
    std::unique_ptr<TargetDevices> devices;
    std::unique_ptr<StoreMemory> memory;
    std::unique_ptr<Loans> loans;
  };
  TargetMount(TargetOptions options, Parts parts);
  nlohmann::json status() const;
  nlohmann::json commit(const request::Commit& request);
  nlohmann::json wait(const request::Wait& request);
  nlohmann::json promise(const request::Promise& request);
  nlohmann::json wait_until_kept(const request::Wait& request);
  nlohmann::json remove(const request::Remove& request);
  static nlohmann::json note_refusal(const request::NoteRefusal& request);
  nlohmann::json lend(const request::Lend& request, std::vector<UniqueFd>& descriptors);
  nlohmann::json bundle(const request::Bundle& request, std::vector<UniqueFd>& descriptors);
  Status hold_memory(const request::HoldMemory& request, std::vector<UniqueFd> received);

  Status serve_agent(Connection& connection, const std::string& node_name);
  std::unique_ptr<Keeper> make_keeper();
  // Accepts sources from now on.
  void start_receiver(std::unique_ptr<Listener> listener);

  const TargetOptions options_;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();

  std::atomic<bool> draining_{false};
  std::atomic<int> working_agents_{0};
  OpenMigrations open_migrations_;
  HeldMemory held_memory_;
  OutcomeTally restarts_{restarts_tally()};

  // Destroyed from last to first: the receiver before the tree that it fills, and the tree before
  // the memory of its files.
  const std::unique_ptr<Upstream> upstream_;
  const std::unique_ptr<SpillDirectory> spill_;
  const std::unique_ptr<TargetDevices> devices_;
  const std::unique_ptr<StoreMemory> memory_;
  const std::unique_ptr<Loans> loans_;
  const ImageStorage storage_;
  ParkingLot parking_;
  ImageTree tree_;
  AgentBridge agents_;
  const std::unique_ptr<Keeper> keeper_;  // null: no keep directory
  TargetFrontEnd front_end_;
  std::unique_ptr<Receiver> receiver_;
};

}  // namespace ppmr
