// A CRIU whose dump or restore is held by the record of this node (criu_relay.h). It is started
// ahead of time, and begins when it is asked: the starts of CRIU and of the relay, which last
// longer than much of what they do for a small process, are no part of the downtime.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restart_loader/criu_process.h"
#include "restart_loader/record_store.h"

namespace ppmr {

struct HeldCriuOptions {
  std::string criu;
  std::string id;
  MigrationRole role = MigrationRole::kSource;
  size_t tree = 0;
  std::string work;                              // where its log goes, and its configuration
  std::function<void(const std::string&)> show;  // each line that it or the relay writes to stderr
};

// Threads: one.
class HeldCriu {
 public:
  static Result<HeldCriu> start(const RecordStore& store, HeldCriuOptions options);

  // What has become of the tree is in the record, why it failed in `work`/`log`. `options` are
  // long ones, as on CRIU's command line. Errors: an option that cannot be passed on; CRIU or the
  // relay has ended.
  Result<std::unique_ptr<CriuProcess>> dump(pid_t root, const std::string& images,
                                            const std::string& log,
                                            const std::vector<std::string>& options);
  Result<std::unique_ptr<CriuProcess>> restore(const std::string& images, const std::string& log,
                                               const std::vector<std::string>& options);

 private:
  HeldCriu() = default;
  Result<std::unique_ptr<CriuProcess>> ask(pid_t root, const std::string& images,
                                           const std::string& log,
                                           const std::vector<std::string>& options);

  HeldCriuOptions options_;
  UniqueFd socket_;
  std::unique_ptr<CriuProcess> process_;
};

}  // namespace ppmr
