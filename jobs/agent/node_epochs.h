// The epochs of the job nodes on this host. Each node of a protected job has one process `ppmr
// part-epochs`. The job's home decides its steps (job_epochs.h).
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
  uint64_t oldest = 0;  // epochs with lower numbers are no longer needed
  std::string partner;  // the host that keeps a copy of the epoch; empty: none
  bool hold = false;    // whether the node stands still even after its epoch is kept
};

// Threads: any. The caller takes the steps of one node one after the other.
class NodeEpochs {
 public:
  // `host`: the name of this host.
  NodeEpochs(const EvacuationOptions& options, std::string host)
      : options_(options), host_(std::move(host)) {}
  ~NodeEpochs();

  // Begins an epoch: its rounds copy memory while the node runs. After an error there is no such
  // epoch, and the node runs on.
  Status begin(const std::string& container, const EpochOrder& order);
  // Freezes the node, and returns when it is captured and stands still.
  Status freeze(const std::string& container, uint64_t number);
  Status go(const std::string& container, uint64_t number, bool keep);
  // Lets a held node stand still for another half a minute.
  Status hold(const std::string& container, uint64_t number) const;
  // Lets a held node run on. Idempotent.
  Status let_go(const std::string& container, uint64_t number) const;
  // Waits for the end of a step. Returns nullopt if it is not done within half a second. `step`: a
  // word of part_messages.h.
  Result<std::optional<part_message::Report>> await(const std::string& container, uint64_t number,
                                                    const std::string& step);
  // Ends the epochs of a node, because it leaves or has ended. Idempotent.
  void end(const std::string& container);

  // Sends the epoch that this host keeps to another host. Errors: those of forward_epoch().
  Status forward(const std::string& container, uint64_t number, const std::string& to) const;

 private:
  // The process that captures the epochs of one node, and its mounts.
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
