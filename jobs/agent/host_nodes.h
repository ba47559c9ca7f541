// The job nodes on this host.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "jobs/agent/record_files.h"
#include "jobs/agent/step_holders.h"
#include "jobs/node/job_node.h"

namespace ppmr {

struct HostNode {
  NodeSpec spec;
  // The holder whose control group contains the node. The node ends with the holder. pid 0: none.
  StepHolder holder{};
  // true: the host only waits for the node, whose processes come from another host or an epoch.
  bool expected = false;
  std::string moving_to{};  // the host to which the node moves; empty: it stays
  // The ID of the migration that moves the node away, or (`expected`) to this host; empty: none.
  std::string migration{};
};

// Threads: any. While one thread works on a node, the node is busy for all others (EBUSY).
class HostNodes {
 public:
  // Reads the records of an earlier agent of this host.
  HostNodes(JobNodeOptions options, RecordFiles records);

  // Makes a job node and starts it. With `expected`, the host only waits for the node, which the
  // migration with the ID `migration` brings. Errors: EEXIST, EADDRINUSE, EBUSY; those of JobNode.
  Status create(const NodeSpec& spec, const StepHolder& holder, bool expected,
                const std::string& migration = "");
  // Removes a node. Idempotent. Errors: EBUSY; those of JobNode::remove(). After an error the node
  // is still there.
  Status remove(const std::string& container);

  std::vector<HostNode> list() const;
  // Returns the node. Errors: ENOENT.
  Result<HostNode> find(const std::string& container) const;

  // The exclusive right to work on the node, until the destruction of the claim. Errors: ENOENT,
  // EBUSY.
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
    uint64_t entry_;  // number of the entry
  };
  Result<Claim> claim(const std::string& container);

  // Returns whether there is a file for the node, readable or not.
  bool has_record(const std::string& container) const { return records_.exists(container); }
  // Returns why the node has ended. Empty: it has not ended, or it moves, or the host only waits
  // for the node. Errors: those of JobNode::has_ended().
  Result<std::string> why_ended(const HostNode& node) const;

  // Ends all processes of the node. Afterwards the host only waits for the node.
  // Idempotent; does nothing if the node is not here. Errors: EBUSY; those of JobNode::stop().
  Status stop(const std::string& container);

  // Records that the node has arrived. Errors: ENOENT.
  Status note_arrival(const std::string& container);

  // Records the host and the migration of the node's move; both empty: the node does not move. The
  // caller must have claimed the node.
  Status note_move(const std::string& container, const std::string& to,
                   const std::string& migration);
  Status remove_claimed(const std::string& container);

 private:
  struct Entry {
    HostNode node;
    bool busy = false;
    uint64_t number = 0;  // distinguishes a new entry from an earlier one of the same name
  };
  Status save(const HostNode& node) const;
  Status change(const std::string& container, const std::function<void(HostNode&)>& change);

  const JobNodeOptions options_;
  const RecordFiles records_;
  mutable Mutex mutex_;
  uint64_t entries_made_ PPMR_GUARDED_BY(mutex_) = 0;
  // The key is NodeSpec::container().
  std::map<std::string, Entry> entries_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
