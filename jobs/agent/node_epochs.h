// The epochs of the job nodes on this host: one `ppmr part-epochs` for each node of a protected
// job, whose steps the job's home decides (job_epochs.h).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "jobs/agent/evacuation.h"
#include "jobs/agent/node_mount.h"
#include "migration/protect/part_messages.h"

namespace ppmr {

struct EpochOrder {
  uint64_t number = 0;
  uint64_t oldest = 0;  // epochs before it are not kept any longer
  std::string partner;  // the host that keeps a copy; empty: none
  bool hold = false;    // whether the node stands still once its epoch is kept
};

// Threads: any. The steps of one node come one after the other.
class NodeEpochs {
 public:
  // `host`: the name of this host.
  NodeEpochs(const EvacuationOptions& options, std::string host)
      : options_(options), host_(std::move(host)) {}
  ~NodeEpochs();

  // Errors: why there will be no such epoch of the node; it runs on.
  Status begin(const std::string& container, const EpochOrder& order);
  // Returns when the node stands still.
  Status freeze(const std::string& container, uint64_t number);
  Status go(const std::string& container, uint64_t number, bool keep);
  // A node that is held stands still for another half a minute.
  Status hold(const std::string& container, uint64_t number) const;
  // A node that is held runs on. Idempotent.
  Status let_go(const std::string& container, uint64_t number) const;
  // Waits for a step, a word of part_messages.h. Returns nullopt if it is not done within a second.
  Result<std::optional<part_message::Report>> await(const std::string& container, uint64_t number,
                                                    const std::string& step);
  // The node has left, or has ended. Idempotent.
  void end(const std::string& container);

  // Sends the epoch that this host keeps to another host. Errors: those of forward_epoch().
  Status forward(const std::string& container, uint64_t number, const std::string& to) const;

 private:
  // One node that is captured again and again.
  struct Part {
    Part(NodeMount to_here, std::optional<NodeMount> to_partner, std::string of)
        : here(std::move(to_here)), partner(std::move(to_partner)), partner_host(std::move(of)) {}
    ~Part();  // ends the process

    NodeMount here;
    std::optional<NodeMount> partner;
    const std::string partner_host;
    pid_t pid = -1;
    UniqueFd socket;
    Mutex mutex;
    std::string pending PPMR_GUARDED_BY(mutex);
  };
  Result<std::shared_ptr<Part>> start(const std::string& container, const std::string& partner);
  Result<std::shared_ptr<Part>> find(const std::string& container) const;
  // Waits for the report of a step. Errors: the reason of a failed epoch; ETIMEDOUT.
  static Result<part_message::Report> await_report(Part& part, uint64_t number,
                                                   const std::string& step,
                                                   std::chrono::milliseconds patience);

  const EvacuationOptions& options_;
  const std::string host_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Part>> parts_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
