// A source mount for a job node on this host. Its target is the `ppmr target` of this host or of
// another host.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace ppmr {

struct EvacuationOptions;

// Threads: one.
class NodeMount {
 public:
  // Mounts at the directory `name` below EvacuationOptions::mounts. First removes a mount that an
  // earlier agent has left there. `host`: the host of the target. Errors: those of the file system
  // and of `ppmr source`.
  static Result<NodeMount> open(const EvacuationOptions& options, const std::string& name,
                                const std::string& host);
  // Removes a mount that an earlier agent has left.
  static void remove(const EvacuationOptions& options, const std::string& name);

  NodeMount(NodeMount&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  NodeMount& operator=(NodeMount&&) = delete;
  ~NodeMount();  // unmounts; the daemon ends when the last process has closed its files there

  const std::string& path() const { return path_; }

 private:
  explicit NodeMount(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace ppmr
