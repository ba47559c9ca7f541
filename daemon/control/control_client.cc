#include "daemon/control/control_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json_text.h"
#include "base/line_socket.h"
#include "base/parse_json.h"

namespace ppmr {
namespace {

// This is enough for a status with 100,000 checkpoints.
constexpr size_t kAnswerMaxBytes = size_t{64} << 20;

}  // namespace

Status ControlCall::send(const std::string& control_socket, const nlohmann::json& request,
                         std::chrono::milliseconds timeout, std::span<const UniqueFd> descriptors) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  control_socket_ = control_socket;
  sockaddr_un address{.sun_family = AF_UNIX};
  if (control_socket.empty() || control_socket.size() >= sizeof(address.sun_path)) {
    return failure(EINVAL, "control socket '" + control_socket +
                               "': the path is empty or too long for a Unix socket");
  }
  std::copy(control_socket.begin(), control_socket.end(), address.sun_path);
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) return system_failure("create a socket for", control_socket);
  // EAGAIN means that the listen queue is full, for example because the daemon is stopped.
  while (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
         0) {
    if (errno != EAGAIN && errno != EINTR) {
      return system_failure("connect to the daemon at", control_socket);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return explain({ETIMEDOUT, "no answer in time"});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (Status sent = write_line(socket_.get(), json_text(request), deadline, descriptors); !sent) {
    return explain(sent.error());
  }
  return {};
}

Result<nlohmann::json> ControlCall::answer(std::chrono::milliseconds timeout) {
  std::string line;
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  if (Status got =
          read_line(socket_.get(), pending_, line, kAnswerMaxBytes, deadline, &descriptors_);
      !got) {
    return explain(got.error());
  }
  nlohmann::json answer = parse_json(line);
  if (!answer.is_object())
    return explain(
        {EPROTO, "cannot parse the answer: not a JSON object (restart the daemon with this ppmr)"});
  return answer;
}

tl::unexpected<Error> ControlCall::explain(const Error& error) const {
  return failure(error.errno_value,
                 "request to the daemon at " + control_socket_ + ": " + error.message);
}

Result<nlohmann::json> call(const std::string& control_socket, const nlohmann::json& request,
                            std::chrono::milliseconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  ControlCall question;
  if (Status sent = question.send(control_socket, request, timeout); !sent) {
    return failure(sent.error());
  }
  return question.answer(
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
}

Status accepted(const nlohmann::json& answer) {
  const auto ok = answer.find("ok");
  if (ok != answer.end() && ok->is_boolean() && ok->get<bool>()) return {};
  Error error{EPROTO,
              "the daemon refused the request without a reason: check that the daemon has the "
              "version of this ppmr"};
  if (const auto it = answer.find("errno"); it != answer.end() && it->is_number_integer()) {
    error.errno_value = it->get<int>();
  }
  if (const auto it = answer.find("error"); it != answer.end() && it->is_string()) {
    error.message = it->get<std::string>();
  }
  return failure(std::move(error));
}

bool is_crowded(const Error& error) {
  return error.errno_value == EAGAIN || error.errno_value == EPIPE ||
         error.errno_value == ECONNRESET;
}

}  // namespace ppmr
