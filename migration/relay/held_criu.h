// A CRIU with its relay (criu_relay.h), for one tree of a migration. Starting CRIU and the relay
// takes longer than the dump of a small process. So this class starts them ahead of time, and CRIU
// waits for its request. The start then adds nothing to the downtime.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "migration/records/record_store.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/criu_rpc.h"

namespace ppmr {

struct HeldCriuOptions {
  std::string criu;
  std::string id;
  MigrationRole role = MigrationRole::kSource;
  size_t tree = 0;
  std::string work;  // directory of CRIU's log and configuration
  // Set for a restore: the sockets that the tree had ("socket:[17]"), and the descriptor that CRIU
  // takes in place of each of them.
  std::vector<std::string> bridged;
  int bridge = -1;
  // Called for each output line of CRIU and the relay.
  std::function<void(const std::string&)> show;
};

struct CriuWork {
  std::string images;
  std::string log;                   // file name in the work directory
  std::vector<std::string> options;  // long options, as on CRIU's command line
  pid_t root = 0;                    // root of the tree, for a dump
};

// Returns the message that requests the work, and writes the configuration file to which it refers.
// `bridged`: see HeldCriuOptions. The client of CRIU must be in the directory `work`. Errors: those
// of the file system; an error for an option that CRIU cannot receive in this way.
Result<std::string> write_criu_request(CriuRequest type, const std::string& work,
                                       const CriuWork& request,
                                       const std::vector<std::string>& bridged = {});

// Threads: one.
class HeldCriu {
 public:
  static Result<HeldCriu> start(const RecordStore& store, HeldCriuOptions options);

  // Requests a dump or restore, once; its result is in the record. Errors: those of
  // write_criu_request(); CRIU or the relay has ended.
  Status request(CriuRequest type, const CriuWork& work);
  // Ends a CRIU that still waits for a request.
  void hang_up() { socket_.reset(); }

  void add_to(std::vector<pollfd>& fds) const;
  CriuProcess& process() { return *process_; }
  std::unique_ptr<CriuProcess> release() { return std::move(process_); }

 private:
  HeldCriu() = default;

  HeldCriuOptions options_;
  UniqueFd socket_;
  std::unique_ptr<CriuProcess> process_;
};

}  // namespace ppmr
