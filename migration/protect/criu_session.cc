#include "migration/protect/criu_session.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/clock.h"
#include "base/ending_signals.h"
#include "base/exit_code.h"
#include "daemon/command_line/output.h"
#include "migration/relay/held_criu.h"
#include "restart_loader/criu/criu_library.h"
#include "restart_loader/criu/criu_rpc.h"
#include "restart_loader/criu/criu_socket.h"
#include "restart_loader/criu/lazy_dump.h"
#include "restart_loader/criu/plain_tar.h"

namespace ppmr {
namespace {

constexpr const char* kLog = "dump.log";
constexpr const char* kConfiguration = "dumping-criu.conf";
constexpr std::chrono::milliseconds kEndPatience{5000};
constexpr const char* kSocket = "3";  // CRIU's name for the descriptor, see CriuProcessOptions

struct DumpingCriu {
  std::string criu;
  std::string work_directory;
  std::string configuration_file;  // empty: none

  int run() const;
};

int DumpingCriu::run() const {
  const auto fail = [](const Error& error) {
    print_to(stderr, "ppmr dumping-criu: {}\n", error.message);
    return to_int(ExitCode::kFailure);
  };
  if (chdir(work_directory.c_str()) != 0) {
    return fail(system_failure("change to", work_directory).value());
  }
  // A signal that ended CRIU in the middle of a dump could end the dumped process, too.
  block_ending_signals();
  if (Status opened = open_ended_page_client(); !opened) return fail(opened.error());
  // Without the library, a dump takes longer.
  if (Status loaded = preload_criu_library(PageList::kOfPpmr, ""); !loaded)
    (void)fail(loaded.error());
  if (Status put = put_plain_tar_in_path(work_directory); !put) return fail(put.error());
  // CRIU reads this file in addition to those that a request names.
  if (!configuration_file.empty()) {
    setenv("CRIU_CONFIG_FILE", configuration_file.c_str(), /*overwrite=*/1);
  }
  execl(criu.c_str(), criu.c_str(), "swrk", kSocket, nullptr);
  return fail(system_failure("run", criu).value());
}

}  // namespace

void add_dumping_criu_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand("dumping-criu")->group("");  // not in --help
  auto command = std::make_shared<DumpingCriu>();
  sub.add_option("--criu", command->criu)->required();
  sub.add_option("--work-dir", command->work_directory)->required();
  sub.add_option("--configuration", command->configuration_file);
  sub.callback([command, &exit_code] { exit_code = command->run(); });
}

Result<CriuSession> CriuSession::start(const std::string& criu, const std::string& work,
                                       std::chrono::milliseconds patience,
                                       const std::string& configuration) {
  auto sockets = make_criu_sockets();
  if (!sockets) return failure(sockets.error());
  std::vector<std::string> argv = {"/proc/self/exe", "dumping-criu",
                                   "--criu",         std::filesystem::absolute(criu),
                                   "--work-dir",     std::filesystem::absolute(work)};
  if (!configuration.empty()) {
    const std::string file = std::filesystem::absolute(work + "/" + kConfiguration);
    if (!(std::ofstream(file) << configuration << std::flush)) return system_failure("write", file);
    argv.insert(argv.end(), {"--configuration", file});
  }
  auto process = CriuProcess::start({.argv = std::move(argv),
                                     .log_file = work + "/dump.out",
                                     .request_socket = sockets->theirs.get(),
                                     .background = true});
  if (!process) return failure(process.error());
  CriuSession session;
  session.work_ = work;
  session.patience_ = patience;
  session.socket_ = std::move(sockets->ours);
  session.process_ = std::move(*process);
  return session;
}

Result<DumpTimes> CriuSession::dump(pid_t root, const std::string& images,
                                    const std::vector<std::string>& options,
                                    const DumpSteps& steps) {
  const auto request = write_criu_request(
      CriuRequest::kDump, work_, {.images = images, .log = kLog, .options = options, .root = root});
  if (!request) return failure(request.error());
  return converse(*request, steps, [](const std::string&) {});
}

Result<DumpTimes> CriuSession::dump(RuncDump& runc, const DumpSteps& steps) {
  return converse(runc.request(), steps,
                  [&runc](const std::string& response) { runc.finish(response); });
}

Result<DumpTimes> CriuSession::converse(
    const std::string& request, const DumpSteps& steps,
    const std::function<void(const std::string&)>& on_response) {
  if (!send_criu_message(socket_.get(), {request, {}})) return failure(explain());
  DumpTimes times;
  std::optional<Error> why_not;
  for (;;) {
    if (Status in_time = await_message(); !in_time) {
      // It holds the tasks with ptrace only. They run on when it has ended.
      process_->end();
      return failure(in_time.error());
    }
    const auto message = receive_criu_message(socket_.get());
    if (!message) return failure(why_not ? *why_not : explain());
    const auto notification = parse_criu_notification(message->bytes);
    if (!notification) {
      times.runs_again_ns = realtime_ns();
      on_response(message->bytes);
      if (why_not) return failure(*why_not);
      if (!has_succeeded(message->bytes)) return failure(explain());
      (void)process_->await_end(kEndPatience);
      return times;
    }
    if (notification->script == "pre-dump") times.freeze_began_ns = realtime_ns();
    Status done;
    if (notification->script == "network-lock" && steps.on_network_lock) {
      done = steps.on_network_lock();
    }
    if (notification->script == "post-dump") done = steps.while_frozen();
    if (notification->script == "network-unlock" && steps.on_network_unlock) {
      steps.on_network_unlock();
    }
    if (!done) why_not = done.error();
    if (!send_criu_message(socket_.get(), {criu_notification_answer(done.has_value()), {}})) {
      return failure(explain());
    }
  }
}

Status CriuSession::await_message() const {
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted{socket_.get(), POLLIN, 0};
    const int found = poll(&wanted, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (found > 0) return {};
    if (found < 0 && errno != EINTR) return system_failure("wait for", "criu");
    if (found == 0) break;
  }
  return failure(ETIMEDOUT,
                 fmt::format("criu dump was silent for {} ms, and was killed so that the process "
                             "runs on (see {}/{})",
                             patience_.count(), work_, kLog));
}

Error CriuSession::explain() {
  socket_.reset();
  (void)process_->await_end(kEndPatience);
  return explain_dump(*process_, "criu dump", work_ + "/" + kLog);
}

}  // namespace ppmr
