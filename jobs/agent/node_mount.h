// A source mount of a job node on this host, whose target is the `ppmr target` of a host.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace ppmr {

struct EvacuationOptions;

// Threads: one.
class NodeMount {
 public:
  // Mounts at the directory `name` below EvacuationOptions::mounts, in place of what an earlier
  // agent has left there. Errors: of the file system; those of `ppmr source`.
  static Result<NodeMount> open(const EvacuationOptions& options, const std::string& name,
                                const std::string& host);
  // Removes what an earlier agent has left.
  static void remove(const EvacuationOptions& options, const std::string& name);

  NodeMount(NodeMount&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  NodeMount& operator=(NodeMount&&) = delete;
  ~NodeMount();  // the daemon ends with the last user of the mount

  const std::string& path() const { return path_; }

 private:
  explicit NodeMount(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace ppmr
