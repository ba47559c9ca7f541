#include "restart_loader/held_criu.h"

#include <unistd.h>

#include <fstream>

#include "restart_loader/criu_options.h"
#include "restart_loader/criu_rpc.h"
#include "restart_loader/criu_socket.h"

namespace ppmr {

Result<HeldCriu> HeldCriu::start(const RecordStore& store, HeldCriuOptions options) {
  auto sockets = make_criu_sockets();
  if (!sockets) return failure(sockets.error());
  const std::vector<std::string> argv = {"/proc/self/exe",
                                         "migration-relay",
                                         "--alone",
                                         "--state-dir",
                                         store.directory(),
                                         "--id",
                                         options.id,
                                         "--role",
                                         to_string(options.role),
                                         "--tree",
                                         std::to_string(options.tree),
                                         "--criu",
                                         options.criu,
                                         "--work-dir",
                                         options.work,
                                         "--",
                                         "swrk",
                                         "3"};
  const bool is_dump = options.role == MigrationRole::kSource;
  auto process =
      CriuProcess::start({.argv = argv,
                          .log_file = options.work + (is_dump ? "/dump.out" : "/restore.out"),
                          .show = options.show,
                          .request_socket = sockets->theirs.get(),
                          .background = true});
  if (!process) return failure(process.error());
  HeldCriu held;
  held.options_ = std::move(options);
  held.socket_ = std::move(sockets->ours);
  held.process_ = std::move(*process);
  return held;
}

Result<std::unique_ptr<CriuProcess>> HeldCriu::dump(pid_t root, const std::string& images,
                                                    const std::string& log,
                                                    const std::vector<std::string>& options) {
  return ask(root, images, log, options);
}

Result<std::unique_ptr<CriuProcess>> HeldCriu::restore(const std::string& images,
                                                       const std::string& log,
                                                       const std::vector<std::string>& options) {
  return ask(0, images, log, options);
}

Result<std::unique_ptr<CriuProcess>> HeldCriu::ask(pid_t root, const std::string& images,
                                                   const std::string& log,
                                                   const std::vector<std::string>& options) {
  // A link, because CRIU 3 asks where it leads: it expects /proc/PID/fd/NUMBER of a runtime.
  const std::string link = options_.work + "/images";
  unlink(link.c_str());
  if (symlink(images.c_str(), link.c_str()) != 0) return system_failure("create", link);
  std::vector<std::string> all = {"--images-dir", link,         "--work-dir",
                                  options_.work,  "--log-file", log};
  all.insert(all.end(), options.begin(), options.end());
  const auto configuration = criu_configuration(all);
  if (!configuration) return failure(configuration.error());
  const std::string path = options_.work + "/criu.conf";
  std::ofstream file(path);
  file << *configuration;
  file.close();
  if (!file) return system_failure("write", path);
  const CriuRequest what = root > 0 ? CriuRequest::kDump : CriuRequest::kRestore;
  if (!send_criu_message(socket_.get(), {criu_request(what, path, root), {}})) {
    process_->process();
    return failure(ECHILD,
                   "CRIU " + process_->how_it_ended() + " before it was asked for anything");
  }
  socket_.reset();
  return std::move(process_);
}

}  // namespace ppmr
