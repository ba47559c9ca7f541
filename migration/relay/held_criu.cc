#include "migration/relay/held_criu.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "restart_loader/criu/criu_options.h"
#include "restart_loader/criu/criu_socket.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kEndPatience{1000};

}  // namespace

Result<HeldCriu> HeldCriu::start(const RecordStore& store, HeldCriuOptions options) {
  auto sockets = make_criu_sockets();
  if (!sockets) return failure(sockets.error());
  const std::vector<std::string> argv = {"/proc/self/exe",
                                         "migration-relay",
                                         "--alone",
                                         "--state-dir",
                                         std::filesystem::absolute(store.directory()),
                                         "--id",
                                         options.id,
                                         "--role",
                                         to_string(options.role),
                                         "--tree",
                                         std::to_string(options.tree),
                                         "--criu",
                                         std::filesystem::absolute(options.criu),
                                         "--work-dir",
                                         std::filesystem::absolute(options.work),
                                         "--",
                                         "swrk",
                                         "3"};
  const bool is_dump = options.role == MigrationRole::kSource;
  auto process =
      CriuProcess::start({.argv = argv,
                          .log_file = options.work + (is_dump ? "/dump.out" : "/restore.out"),
                          .show = options.show,
                          .request_socket = sockets->theirs.get(),
                          .inherited = std::vector<int>(options.bridged.size(), options.bridge),
                          .background = true});
  if (!process) return failure(process.error());
  HeldCriu held;
  held.options_ = std::move(options);
  held.socket_ = std::move(sockets->ours);
  held.process_ = std::move(*process);
  return held;
}

// Paths are relative to the work directory, and CRIU or the relay changes to that directory: an
// absolute path could contain blanks.
Result<std::string> write_criu_request(CriuRequest type, const std::string& work,
                                       const CriuWork& request,
                                       const std::vector<std::string>& bridged) {
  // This is a symbolic link, because CRIU 3 calls readlink(2) on the images directory: it expects
  // /proc/PID/fd/NUMBER, made from a descriptor of a container runtime.
  const std::string link = work + "/images";
  unlink(link.c_str());
  if (symlink(request.images.c_str(), link.c_str()) != 0) return system_failure("create", link);
  // CRIU logs to a file instead of the pipe, because CRIU must be able to continue after the death
  // of this process.
  std::vector<std::string> all = {"--images-dir", "images",   "--work-dir", ".",
                                  "--log-file",   request.log};
  all.insert(all.end(), request.options.begin(), request.options.end());
  auto settings = criu_settings(all);
  if (!settings) return failure(settings.error());
  settings->inherited = bridged;
  const std::string path = work + "/criu.conf";
  std::ofstream file(path);
  file << settings->configuration;
  file.close();
  if (!file) return system_failure("write", path);
  return criu_request(type, request.root, *settings, path);
}

Status HeldCriu::request(CriuRequest type, const CriuWork& work) {
  const auto message = write_criu_request(type, options_.work, work, options_.bridged);
  if (!message) return failure(message.error());
  if (!send_criu_message(socket_.get(), {*message, {}})) {
    (void)process_->await_end(kEndPatience);
    const std::string why = process_->errors().summary();
    return failure(ECHILD, "CRIU " + process_->how_it_ended() + " before it received the request" +
                               (why.empty() ? "" : ": " + why));
  }
  hang_up();
  return {};
}

void HeldCriu::add_to(std::vector<pollfd>& fds) const {
  process_->add_to(fds);
  if (socket_) fds.push_back({socket_.get(), POLLIN, 0});
}

}  // namespace ppmr
