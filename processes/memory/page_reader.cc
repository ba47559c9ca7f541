#include "processes/memory/page_reader.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <system_error>
#include <thread>

#include "base/ending_signals.h"
#include "base/exit_code.h"
#include "base/leave_terminal.h"
#include "base/line_socket.h"
#include "base/mapped_memory.h"
#include "base/spawn.h"
#include "base/without_exceptions.h"
#include "processes/memory/memory_reader.h"
#include "processes/memory/pace.h"
#include "processes/memory/page_index.h"
#include "processes/memory/read_messages.h"

namespace ppmr {
namespace {

constexpr std::string_view kDaemon = "the daemon";
// Number of the first descriptor in the page reader; the others follow.
constexpr int kFirstSocket = 3;
// The daemon sends its first request after the rounds of a live move, which can take long.
constexpr std::chrono::hours kPatience{24};
constexpr int kPriorityBesideTree = 10;
// The most processor time that counts for one chunk. The daemon has fewer rights than the page
// reader, and an attacker may control it.
constexpr uint64_t kUsedMaxNs = 60'000'000'000;

Result<MappedMemory> receive_pool(int socket) {
  std::string pending, line;
  std::vector<UniqueFd> descriptors;
  const Status received = read_line(socket, pending, line, sizeof(ReadRequest),
                                    std::chrono::steady_clock::now() + kPatience, &descriptors);
  if (!received) return failure(received.error());
  if (descriptors.size() != 1)
    return failure(EPROTO, "start the page reader: the daemon has passed no pool");
  return MappedMemory::map_shared(std::move(descriptors[0]));
}

Status read(Result<MemoryReader>& reader, const ReadRequest& request, std::span<std::byte> pool) {
  if (!reader) return failure(reader.error());
  if (request.pool_offset > pool.size() || request.length > pool.size() - request.pool_offset) {
    return failure(EINVAL, "read memory: the requested place is not in the pool");
  }
  return reader->read(request.offset, pool.subspan(request.pool_offset, request.length));
}

void serve(int socket, Result<MemoryReader> reader, std::span<std::byte> pool, PacedReading pace) {
  for (;;) {
    const auto request = receive_message<ReadRequest>(socket, kDaemon);
    if (!request && request.error().errno_value != EPROTO) return;
    const Status done = without_exceptions([&]() -> Status {
      if (!request) return failure(EPROTO, "malformed request to the page reader");
      return read(reader, *request, pool);
    });
    ReadReply reply;
    if (!done) reply.set(done.error());
    if (!send_message(socket, reply, kDaemon)) return;
    const auto used =
        std::chrono::nanoseconds(request ? std::min(request->used_ns, kUsedMaxNs) : 0);
    if (request && !pace.wait_after(request->length, used, socket)) {
      (void)::shutdown(socket, SHUT_RDWR);  // the daemon fails its next request at once
      return;
    }
  }
}

int run(const std::vector<int>& sockets, const PageReaderFiles& files, bool tree_runs) {
  ignore_ending_signals();  // the daemon may still need the memory
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_DUMPABLE, 0);
  // Otherwise a pipe behind `ppmr migrate` would stay open as long as this process lives.
  leave_terminal();
  std::vector<UniqueFd> owned;
  for (const int socket : sockets) owned.emplace_back(socket);
  // While the tree runs, it has priority on the processors.
  if (tree_runs) (void)setpriority(PRIO_PROCESS, 0, kPriorityBesideTree);
  const Status served = serve_page_reads(
      std::move(owned), files, tree_runs ? MemoryReader::Tree::kRuns : MemoryReader::Tree::kFrozen);
  return to_int(served ? ExitCode::kSuccess : ExitCode::kFailure);
}

}  // namespace

Status serve_page_reads(std::vector<UniqueFd> sockets, const PageReaderFiles& files,
                        MemoryReader::Tree tree) {
  if (sockets.size() < kPageReaderSocketsMin || sockets.size() > kPageReaderSocketsMax)
    return failure(EINVAL, "start the page reader: wrong number of sockets");
  const auto pool = receive_pool(sockets[0].get());
  if (!pool) return failure(pool.error());
  const auto index = read_page_index(files.index);
  auto reader = index ? MemoryReader::create(*index, tree) : failure(index.error());
  std::vector<std::thread> others;
  Status started;
  try {
    for (size_t i = 1; i < sockets.size(); ++i) {
      Result<MemoryReader> another =
          reader ? Result<MemoryReader>(reader->for_another_thread()) : failure(reader.error());
      others.emplace_back(
          [socket = sockets[i].get(), another = std::move(another), &pool]() mutable {
            serve(socket, std::move(another), pool->bytes(), PacedReading({}));
          });
    }
  } catch (const std::system_error& exception) {
    started =
        failure(EAGAIN, std::string("start a thread of the page reader: ") + exception.what());
    for (const UniqueFd& socket : sockets) (void)::shutdown(socket.get(), SHUT_RDWR);
  }
  if (started) serve(sockets[0].get(), std::move(reader), pool->bytes(), PacedReading(files.pace));
  for (std::thread& other : others) other.join();
  return started;
}

Result<PageReaderProcess> PageReaderProcess::start(const PageReaderFiles& files,
                                                   MemoryReader::Tree tree) {
  PageReaderProcess started;
  std::vector<UniqueFd> theirs;
  SpawnOptions options{.argv = {"ppmr", "page-reader", "--index=" + files.index},
                       .program = "/proc/self/exe",
                       .group = SpawnGroup::kOwnSession};
  if (tree == MemoryReader::Tree::kRuns) options.argv.push_back("--tree-runs");
  const auto add_file = [&](const char* option, const std::string& path) {
    if (!path.empty()) options.argv.push_back(option + path);
  };
  add_file("--rate-file=", files.pace.rate);
  add_file("--cpu-share-file=", files.pace.cpu_share);
  add_file("--pause-file=", files.pace.pause);
  const size_t sockets =
      page_reader_sockets(std::thread::hardware_concurrency(), tree == MemoryReader::Tree::kRuns);
  for (size_t i = 0; i < sockets; ++i) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return system_failure("create a socket pair for", "the page reader");
    }
    started.ends_.emplace_back(ends[0]);
    theirs.emplace_back(ends[1]);
    const int number = kFirstSocket + static_cast<int>(i);
    options.argv.push_back("--fd=" + std::to_string(number));
    options.files.push_back({ends[1], number});
  }
  auto pid = spawn(options);
  if (!pid) return failure(pid.error());
  started.pid_ = *pid;
  return started;
}

PageReaderProcess::~PageReaderProcess() {
  ends_.clear();
  if (pid_ > 0) ::waitpid(pid_, nullptr, WNOHANG);
}

void add_page_reader_command(CLI::App& app, int& exit_code) {
  struct Flags {
    std::vector<int> sockets;
    PageReaderFiles files;
    bool tree_runs = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App& sub = *app.add_subcommand("page-reader", "")->group("");
  sub.add_option("--fd", flags->sockets)->required()->allow_extra_args(false)->take_all();
  sub.add_option("--index", flags->files.index)->required();
  sub.add_option("--rate-file", flags->files.pace.rate);
  sub.add_option("--cpu-share-file", flags->files.pace.cpu_share);
  sub.add_option("--pause-file", flags->files.pace.pause);
  sub.add_flag("--tree-runs", flags->tree_runs);
  sub.callback(
      [flags, &exit_code] { exit_code = run(flags->sockets, flags->files, flags->tree_runs); });
}

}  // namespace ppmr
