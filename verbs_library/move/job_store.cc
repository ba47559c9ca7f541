#include "verbs_library/move/job_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>

#include "jobs/peer_directory.h"
#include "verbs_library/move/conversation.h"
#include "verbs_library/move/settings.h"

namespace ppmr::verbs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{60'000};
// The time limit of one attempt. While the directory moves, TCP retransmits ever more rarely, so a
// new connection is faster.
constexpr milliseconds kAttempt{3'000};
constexpr milliseconds kBetweenAttempts{100};

std::string read_token() {
  char text[kDirectoryTokenMax];
  const int fd = open(settings().token_file.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof(text));
  if (fd >= 0) close(fd);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

bool await(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd ready = {.fd = fd, .events = events, .revents = 0};
    const int count = poll(&ready, 1, static_cast<int>(left));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

bool send_all(int fd, const std::string& text, Clock::time_point deadline) {
  for (size_t at = 0; at < text.size();) {
    if (!await(fd, POLLOUT, deadline)) return false;
    const ssize_t sent = send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) at += static_cast<size_t>(sent);
  }
  return shutdown(fd, SHUT_WR) == 0;
}

std::optional<std::string> receive_all(int fd, Clock::time_point deadline) {
  std::string text;
  for (char piece[1024];;) {
    if (!await(fd, POLLIN, deadline)) return std::nullopt;
    const ssize_t size = recv(fd, piece, sizeof(piece), 0);
    if (size == 0) return text;
    if (size < 0 && errno != EAGAIN && errno != EINTR) return std::nullopt;
    if (size > 0) text.append(piece, static_cast<size_t>(size));
    if (text.size() > kDirectoryTextMax + 1) return std::nullopt;
  }
}

class JobStore : public TextStore {
 public:
  explicit JobStore(const std::string& place) : token_(read_token()) {
    const size_t colon = place.rfind(':');
    if (colon == std::string::npos) return;
    server_.ip = place.substr(0, colon);
    std::from_chars(place.data() + colon + 1, place.data() + place.size(), server_.port);
  }

  int create(const std::string& name, const std::string& text) override {
    return errno_of(ask(DirectoryOp::kCreate, name, text, kPatience));
  }
  int write(const std::string& name, const std::string& text) override {
    return errno_of(ask(DirectoryOp::kWrite, name, text, kPatience));
  }
  void remove(const std::string& name) override {
    // Tries for a short time only, because it would delay the end of a program. A name that remains
    // does no harm: the directory ends with the job.
    ask(DirectoryOp::kRemove, name, "", kAttempt);
  }
  std::optional<std::string> get(const std::string& name) override {
    const auto reply = ask(DirectoryOp::kGet, name, "", kPatience);
    if (!reply || reply->code != DirectoryCode::kDone) return std::nullopt;
    return reply->text;
  }

 private:
  static int errno_of(const std::optional<DirectoryReply>& reply) {
    if (!reply) return ETIMEDOUT;
    if (reply->code == DirectoryCode::kTaken) return EEXIST;
    return reply->code == DirectoryCode::kDone ? 0 : EACCES;
  }

  std::optional<DirectoryReply> try_once(const std::string& request) const {
    const auto deadline = Clock::now() + kAttempt;
    const int fd = start_connect(server_);
    if (fd < 0) return std::nullopt;
    const bool sent = send_all(fd, request, deadline);
    const auto reply = sent ? receive_all(fd, deadline) : std::nullopt;
    close(fd);
    return reply ? parse_directory_reply(*reply) : std::nullopt;
  }

  // Sends a request until there is a reply. Returns nullopt if there was none within `patience`.
  std::optional<DirectoryReply> ask(DirectoryOp op, const std::string& name,
                                    const std::string& text, milliseconds patience) const {
    const std::string request = to_text(DirectoryRequest{token_, op, name, text});
    const auto deadline = Clock::now() + patience;
    for (;;) {
      if (auto reply = try_once(request)) return reply;
      if (Clock::now() + kBetweenAttempts >= deadline) return std::nullopt;
      poll(nullptr, 0, static_cast<int>(kBetweenAttempts.count()));
    }
  }

  const std::string token_;
  ControlAddress server_;
};

}  // namespace

TextStore* make_job_store(const std::string& place) { return new JobStore(place); }

}  // namespace ppmr::verbs
