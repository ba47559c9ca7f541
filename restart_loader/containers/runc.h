// Containers, managed with the runc command.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "restart_loader/containers/container_record.h"

namespace ppmr {

struct ContainerState {
  std::string name;
  std::string status;  // "created", "running", "paused", "stopped"
  pid_t pid = 0;       // the container's first process; 0: the container is stopped
  std::string bundle;  // the directory of its config.json
  std::string root_file_system;
  std::string created;  // time of creation; distinguishes containers of the same name
};

// Threads: any.
class Runc {
 public:
  // Finds `runc` in PATH. Errors: ENOENT.
  static Result<Runc> find();

  const std::string& path() const { return path_; }
  Result<std::string> version() const;
  // Returns the state of a container. Errors: ENOENT if runc has no such container; EPROTO.
  Result<ContainerState> state(const std::string& name) const;
  // Returns whether runc keeps anything under this name, listed or not. If runc is killed while it
  // makes a container, it leaves a directory, and the name cannot be used again.
  bool has_directory(const std::string& name) const;
  // Returns the names of all containers.
  Result<std::vector<std::string>> list() const;
  // Returns all processes in the container, including those that `runc exec` added.
  Result<std::vector<pid_t>> processes(const std::string& name) const;
  Status resume(const std::string& name) const;
  // Kills the container's processes and removes it. Errors: EBUSY when a file system is mounted in
  // runc's directory of the container.
  Status remove(const std::string& name) const;

  // Returns the command line that runs runc with `directory` at the front of PATH, so that runc
  // finds the `criu` there first.
  std::vector<std::string> command(const std::string& directory,
                                   const std::vector<std::string>& words) const;
  // Like command(), but the command runs in a new mount namespace; for `runc restore`.
  std::vector<std::string> restore_command(const std::string& directory,
                                           const std::vector<std::string>& words) const;

 private:
  Status check_mounts(const std::string& name) const;
  explicit Runc(std::string path) : path_(std::move(path)) {}
  Result<std::string> run(const std::vector<std::string>& words) const;

  std::string path_;
};

// Translates options of CRIU to options of `runc checkpoint` and `runc restore`. Errors: EINVAL for
// an option that neither runc nor runc_configuration() supports.
Result<std::vector<std::string>> runc_options(const std::vector<std::string>& criu_options);
// Returns the text of a configuration file for CRIU, with the options that runc does not have.
std::string runc_configuration(const std::vector<std::string>& criu_options);

// Parses the output of `runc state`. Errors: EPROTO.
Result<ContainerState> parse_container_state(const std::string& text);

}  // namespace ppmr
