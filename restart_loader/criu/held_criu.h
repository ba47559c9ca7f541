// A CRIU whose dump or restore is held by the record of this node (criu_relay.h). It is started
// ahead of time, and begins when it is asked: the starts of CRIU and of the relay, which last
// longer than much of what they do for a small process, are no part of the downtime, nor of a round
// of pre-copy, which would leave the more for the next.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/criu_rpc.h"
#include "restart_loader/records/record_store.h"

namespace ppmr {

struct HeldCriuOptions {
  std::string criu;
  std::string id;
  MigrationRole role = MigrationRole::kSource;
  size_t tree = 0;
  std::string work;                              // where its log goes, and its configuration
  std::function<void(const std::string&)> show;  // each line that it or the relay writes to stderr
};

struct CriuWork {
  std::string images;
  std::string log;                   // in the work directory
  std::vector<std::string> options;  // long ones, as on CRIU's command line
  pid_t root = 0;                    // of the tree to dump
};

// Threads: one.
class HeldCriu {
 public:
  static Result<HeldCriu> start(const RecordStore& store, HeldCriuOptions options);

  // Any number of pre-dumps, each when the one before has ended; then the dump or the restore, of
  // which the record says what has become. Errors: an option that cannot be passed on; CRIU or the
  // relay has ended.
  Status ask(CriuRequest what, const CriuWork& work);
  // Whether the pre-dump has ended, and well or not; nullopt: it goes on.
  std::optional<bool> pre_dumped();
  // Nothing more will be asked: one that waits to be asked ends.
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
