// A job node: the container in which a host's share of a job runs. It has its own pid, mount, uts,
// ipc and network namespaces and its own address, and moves with all of them.
//
// Its root is the host's root file system, read-only. The shared directories are writable. Its
// /tmp, /run and /dev are in memory, and move with it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "jobs/node/job_network.h"
#include "jobs/node/node_spec.h"

namespace ppmr {

// The settings of a host's administrator for job nodes. They must be the same on all hosts.
struct JobNodeOptions {
  std::string directory;  // directory of this host's bundles; private to root
  std::vector<std::string>
      shares;                 // directories that job nodes share with all hosts, such as /home
  std::string program;        // the path of ppmr
  std::string verbs_library;  // the path of libppmr-verbs.so; empty: it is not installed
  JobNetwork network;
};

// Threads: any; one at a time for each node.
class JobNode {
 public:
  // `group`: the control group that must contain the node's own group, see control_group.h; empty:
  // kJobGroups.
  JobNode(const JobNodeOptions& options, const NodeSpec& spec, std::string group)
      : options_(options), spec_(spec), group_(std::move(group)) {}

  // Makes the network namespace and the bundle. Starts no process, and does not attach the port.
  // Errors: EEXIST; those of the steps. After an error nothing remains.
  Status prepare() const;
  // Starts process 1 and attaches the port. Errors: those of runc.
  Status start() const;
  // Cuts the port, ends all processes of the node, and makes its network namespace anew. In the old
  // namespace the kernel keeps connections of the ended processes, whose addresses a restore needs.
  // Idempotent. Errors: those of runc and ip(8).
  Status stop() const;
  // Ends all processes of the node and removes what prepare() has made. Idempotent. Errors: those
  // of runc. After an error the caller calls this again.
  Status remove() const;
  // Returns whether runc has the container on this host and its process 1 has ended. Errors: those
  // of runc.
  Result<bool> has_ended() const;

 private:
  std::string bundle() const { return options_.directory + "/" + spec_.container(); }
  // Returns the status of the container in runc's words, such as "running"; empty: runc has no such
  // container here.
  Result<std::string> status() const;
  Status make_bundle() const;
  Status remove_bundle() const;

  const JobNodeOptions& options_;
  const NodeSpec& spec_;
  const std::string group_;
};

// Returns the text of the bundle's config.json.
std::string job_node_config(const JobNodeOptions& options, const NodeSpec& spec,
                            const std::string& group);

}  // namespace ppmr
