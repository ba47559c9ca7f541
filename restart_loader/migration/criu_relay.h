// CRIU with a relay beside it, which does what has to be done at CRIU's notifications: it holds the
// tree (migration_hook.h), guards its pages, passes the rest on.
//
//   runc <--- socket of runc's ---> relay <--- socket of ours ---> criu swrk     a container
//   held_criu.h --- requests -----> relay <--- socket of ours ---> criu swrk     a process: alone
//                                     |
//                            the record of this node
//
// A container runtime runs this in place of CRIU while its container is migrated. CRIU knows either
// action scripts or one that wants to be notified, so scripts cannot be had beside runc; and each
// of them would be the start of a program, while the tree is frozen.
//
// CRIU keeps the process that was started, for it is that one's child that the restored tree has to
// be; the relay ends when CRIU does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "restart_loader/criu/criu_socket.h"
#include "restart_loader/records/record_store.h"

namespace ppmr {

// Puts a `criu` into the work directory that is this relay: for the front of the runtime's PATH.
// Errors: of the file system.
Status write_relay_script(const RecordStore& store, const std::string& id, MigrationRole role,
                          size_t tree, const std::string& criu, const std::string& work_directory);

struct CriuRelay {
  std::string state_directory;
  std::string id;
  std::string role;  // "source" or "target"
  size_t tree = 0;
  std::string criu;  // the real one
  std::string work_directory;
  bool alone = false;  // no container runtime: after what is to be held nobody is asked
  std::vector<std::string> arguments;  // for CRIU: swrk NUMBER

  // Becomes CRIU; returns only in the relay's own process, or after an error.
  int run() const;

 private:
  int become_criu() const;
  int run_for_runtime(int socket) const;
  int stand_between(int socket, std::optional<CriuMessage> first) const;
  void settle_after(const ProcessIdentity& runtime) const;
};

}  // namespace ppmr
