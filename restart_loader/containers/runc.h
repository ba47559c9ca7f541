// Containers as runc knows them, through its command.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "restart_loader/records/ownership_record.h"

namespace ppmr {

struct ContainerState {
  std::string name;
  std::string status;  // "created", "running", "paused", "stopped"
  pid_t pid = 0;       // of its first process; 0: stopped
  std::string bundle;  // the directory of its config.json
  std::string root_file_system;
  std::string created;  // tells it from another one of the same name
};

// Threads: any.
class Runc {
 public:
  // `runc` in PATH. Errors: ENOENT.
  static Result<Runc> find();

  const std::string& path() const { return path_; }
  Result<std::string> version() const;
  // Errors: ENOENT where runc has no such container; EPROTO.
  Result<ContainerState> state(const std::string& name) const;
  // All processes in it, also those that were put into it later.
  Result<std::vector<pid_t>> processes(const std::string& name) const;
  Status resume(const std::string& name) const;
  // Kills what is left of it, and forgets it.
  Status remove(const std::string& name) const;

  // A command that runs runc with `directory` at the front of its PATH, where it looks for CRIU.
  std::vector<std::string> command(const std::string& directory,
                                   const std::vector<std::string>& words) const;

 private:
  explicit Runc(std::string path) : path_(std::move(path)) {}
  Result<std::string> run(const std::vector<std::string>& words) const;

  std::string path_;
};

// What `runc checkpoint` and `runc restore` call these options of CRIU's. Errors: EINVAL and the
// option that runc has no word for.
Result<std::vector<std::string>> runc_options(const std::vector<std::string>& criu_options);

// Errors: EPROTO.
Result<ContainerState> parse_container_state(const std::string& text);

}  // namespace ppmr
