// What a container runtime runs in place of CRIU while its container is migrated: CRIU itself, with
// a relay between the two that does at CRIU's notifications what the migration hook does as an
// action script elsewhere. CRIU knows either scripts or a runtime that wants to be notified, so a
// script of ours cannot be had beside runc.
//
//   runc <--- socket of runc's ---> relay <--- socket of ours ---> criu swrk
//                                     |
//                            the record of this node
//
// CRIU keeps the process that the runtime started, for it is that one's child that the restored
// container has to be; the relay ends when CRIU does.
#pragma once

#include <string>
#include <vector>

#include "restart_loader/record_store.h"

namespace ppmr {

// Puts a `criu` into the work directory that is this relay: for the front of the runtime's PATH.
// Errors: of the file system.
Status write_relay_script(const RecordStore& store, const std::string& id, MigrationRole role,
                          size_t tree, const std::string& criu, const std::string& work_directory);

// Whether the runtime made its container in this boot of the node: it has got as far as CRIU.
bool container_was_made(const std::string& work_directory);
void forget_that_container_was_made(const std::string& work_directory);

struct CriuRelay {
  std::string state_directory;
  std::string id;
  std::string role;  // "source" or "target"
  size_t tree = 0;
  std::string criu;  // the real one
  std::string work_directory;
  std::vector<std::string> arguments;  // those of the runtime: swrk NUMBER

  // Becomes CRIU; returns only in the relay's own process, or after an error.
  int run() const;

 private:
  void settle_after(const ProcessIdentity& runtime) const;
};

}  // namespace ppmr
