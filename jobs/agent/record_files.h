// JSON files that survive the agent, in a directory that is private to root. The records of jobs
// and job nodes are in memory. Like the nodes, they do not survive a reboot.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Threads: any; one at a time for each name.
class RecordFiles {
 public:
  // Creates the directory with mode 0700. Errors: those of mkdir(2).
  static Result<RecordFiles> open(const std::string& directory);

  // Replaces the file NAME.json as a whole. The file is durable on return. Errors: those of
  // open(2), write(2), fsync(2) and rename(2).
  Status write(const std::string& name, const nlohmann::json& record) const;
  void remove(const std::string& name) const;
  // Returns whether there is a file, readable or not. Returns true if the disk does not tell.
  bool exists(const std::string& name) const;
  // Returns all records. Logs and skips what cannot be read, and files that are not valid JSON.
  std::vector<nlohmann::json> read_all() const;

 private:
  explicit RecordFiles(std::string directory) : directory_(std::move(directory)) {}
  std::string directory_;
};

}  // namespace ppmr
