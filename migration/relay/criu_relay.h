// `ppmr migration-relay` runs CRIU with a relay process beside it. At CRIU's notifications the
// relay holds the tree (migration_hook.h) and starts the page guard. The relay passes all other
// messages on.
//
//   runc <---- runc's socket ----> relay <---- the relay's socket ----> criu swrk    a container
//   held_criu.h ---- requests ---> relay <---- the relay's socket ----> criu swrk    alone
//                                    |
//                          the record of this node
//
// While a container is migrated, its runtime starts this program in place of CRIU.
//
// The process of this program becomes CRIU, because the restored tree must become a child of that
// process's parent. The relay is another process. It ends when CRIU ends.
//
// Rejected: action scripts. CRIU supports either scripts or a client that receives notifications.
// runc is such a client, so scripts are not available with runc. Also, each script would start a
// program while the tree is frozen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "migration/records/record_store.h"
#include "restart_loader/containers/container_port.h"
#include "restart_loader/criu/criu_socket.h"

namespace ppmr {

// Writes a script `criu`, which runs this relay, to the work directory. The caller puts that
// directory at the front of the runtime's PATH. `configuration`: the text of a configuration file
// for CRIU, or empty. Errors: those of the file system.
Status write_relay_script(const RecordStore& store, const std::string& id, MigrationRole role,
                          size_t tree, const std::string& criu, const std::string& work_directory,
                          const std::string& configuration = "");

struct CriuRelay {
  std::string state_directory;
  std::string id;
  std::string role;  // "source" or "target"
  size_t tree = 0;
  std::string criu;  // the real CRIU, not the relay's script
  std::string work_directory;
  bool alone = false;                  // true: there is no container runtime
  std::vector<std::string> arguments;  // arguments of CRIU: swrk NUMBER

  // Forks the relay, then executes CRIU in the calling process. In the relay, returns an exit code
  // when the relay has finished. In the calling process, returns an exit code if CRIU cannot be
  // executed.
  int run() const;

 private:
  int become_criu() const;
  int run_for_runtime(int socket) const;
  int start_relay(int socket, std::optional<CriuMessage> first, const std::string& images) const;
  Result<OwnershipRecord> read_record() const;
  Result<ContainerPort> port_of_container() const;
  void release_tree() const;
  void settle_container(const ProcessIdentity& runtime) const;
};

}  // namespace ppmr
