#include "processes/memory/remote_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/line_socket.h"
#include "base/processor_time.h"
#include "processes/memory/read_messages.h"

namespace ppmr {

using std::chrono::nanoseconds;

namespace {

constexpr std::chrono::milliseconds kCheckInterval{100};
constexpr std::chrono::seconds kPatienceToLend{5};
constexpr const char* kReader = "the page reader";

}  // namespace

Status lend_pool(const UniqueFd& socket, int pool) {
  const UniqueFd copy(::fcntl(pool, F_DUPFD_CLOEXEC, 0));
  if (!copy) return system_failure("duplicate the descriptor of", "the pool");
  const auto deadline = std::chrono::steady_clock::now() + kPatienceToLend;
  Status sent = write_line(socket.get(), "", deadline, std::span(&copy, 1));
  if (!sent && sent.error().errno_value == EPIPE) return has_ended(kReader);
  return sent;
}

RemoteMemory::RemoteMemory(UniqueFd socket, std::span<const std::byte> pool,
                           std::optional<std::chrono::milliseconds> patience,
                           std::function<bool()> give_up)
    : socket_(std::move(socket)),
      pool_(pool.data()),
      patience_(patience),
      give_up_(std::move(give_up)) {}

// Counts all threads of the daemon, because other threads send what was read.
nanoseconds RemoteMemory::used_since_last() {
  const nanoseconds now = processor_time();
  const nanoseconds before = std::exchange(used_, now);
  return before == nanoseconds(0) ? nanoseconds(0) : now - before;
}

Status RemoteMemory::read(uint64_t offset, std::span<std::byte> slot) {
  const ReadRequest request{offset, slot.size(), static_cast<uint64_t>(slot.data() - pool_),
                            static_cast<uint64_t>(used_since_last().count())};
  if (Status sent = send_message(socket_.get(), request, kReader); !sent) return sent;
  is_unanswered_ = true;
  if (Status replied = await_reply(); !replied) return replied;
  is_unanswered_ = false;
  const auto reply = receive_message<ReadReply>(socket_.get(), kReader);
  return reply ? reply->status(kReader) : failure(reply.error());
}

UniqueFd RemoteMemory::take_unanswered() {
  return is_unanswered_ ? std::move(socket_) : UniqueFd();
}

Status RemoteMemory::await_reply() {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    pollfd wait{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(kCheckInterval.count()));
    if (ready > 0) return {};
    if (give_up_()) return failure(ECANCELED, "read memory: the transfer was cancelled");
    if (patience_ && std::chrono::steady_clock::now() - start > *patience_) {
      return failure(ETIMEDOUT, std::string(kReader) + " has not replied for " +
                                    std::to_string(patience_->count()) + " ms (is it stopped?)");
    }
  }
}

}  // namespace ppmr
