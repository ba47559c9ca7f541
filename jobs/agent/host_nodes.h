// The job nodes on this host.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "jobs/agent/record_files.h"
#include "jobs/agent/step_holders.h"
#include "jobs/node/job_node.h"

namespace ppmr {

struct HostNode {
  NodeSpec spec;
  StepHolder holder{};      // its group has the node, and the node ends with it; pid 0: none
  bool expected = false;    // prepared for a node that is on its way here
  std::string moving_to{};  // the host that it is leaving for; empty: it stays
  std::vector<std::string> earlier_migrations{};  // of the node from here; another one is this move
};

// Threads: any. A node that one thread works on is busy for the others (EBUSY).
class HostNodes {
 public:
  // Reads the records of an earlier agent of this host.
  HostNodes(JobNodeOptions options, RecordFiles records);

  // Makes a job node and starts it, or only prepares for one that is on its way. Errors: EEXIST,
  // EADDRINUSE, EBUSY; those of JobNode.
  Status create(const NodeSpec& spec, const StepHolder& holder, bool expected);
  // Idempotent. Errors: EBUSY; those of JobNode::remove(): the node is kept then.
  Status remove(const std::string& container);

  std::vector<HostNode> list() const;
  // Errors: ENOENT.
  Result<HostNode> find(const std::string& container) const;

  // The exclusive right to work on the node, until the claim is destroyed. Errors: ENOENT, EBUSY.
  class Claim {
   public:
    Claim(HostNodes& nodes, std::string container, uint64_t entry)
        : nodes_(&nodes), container_(std::move(container)), entry_(entry) {}
    Claim(Claim&& other) noexcept
        : nodes_(std::exchange(other.nodes_, nullptr)),
          container_(std::move(other.container_)),
          entry_(other.entry_) {}
    Claim& operator=(Claim&&) = delete;
    ~Claim();

   private:
    HostNodes* nodes_;
    std::string container_;
    uint64_t entry_;  // Entry::number
  };
  Result<Claim> claim(const std::string& container);

  // Whether there is a file for the node, readable or not.
  bool has_record(const std::string& container) const { return records_.exists(container); }
  // Why the node is at its end; empty: it is not, such as one that moves. Errors: those of
  // JobNode::has_ended().
  Result<std::string> why_ended(const HostNode& node) const;

  // Notes that the node has arrived. Errors: ENOENT.
  Status note_arrival(const std::string& container);

  // The caller has claimed the node.
  Status note_move(const std::string& container, const std::string& to,
                   const std::vector<std::string>& earlier_migrations);
  Status remove_claimed(const std::string& container);

 private:
  struct Entry {
    HostNode node;
    bool busy = false;
    uint64_t number = 0;  // distinguishes entries of the same name
  };
  Status save(const HostNode& node) const;
  Status change(const std::string& container, const std::function<void(HostNode&)>& change);

  const JobNodeOptions options_;
  const RecordFiles records_;
  mutable std::mutex mutex_;
  uint64_t entries_made_ = 0;             // guarded by mutex_
  std::map<std::string, Entry> entries_;  // guarded by mutex_; the key is NodeSpec::container()
};

}  // namespace ppmr
