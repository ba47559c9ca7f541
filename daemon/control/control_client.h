// The client's half of the control socket, see control_socket.h. The client does not access the
// mount. So a mount that hangs does not block the client.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// One request and its answer, for a caller that does other work between the two. Threads: one.
class ControlCall {
 public:
  // Sends a request, with `descriptors`. Errors: the same as for call().
  Status send(const std::string& control_socket, const nlohmann::json& request,
              std::chrono::milliseconds timeout, std::span<const UniqueFd> descriptors = {});
  // Waits for the answer. After ETIMEDOUT the caller can wait again. Errors: the same as for
  // call().
  Result<nlohmann::json> answer(std::chrono::milliseconds timeout);
  // Takes the file descriptors that came with the answer. descriptor() takes the only one.
  std::vector<UniqueFd> descriptors() { return std::exchange(descriptors_, {}); }
  UniqueFd descriptor() { return descriptors_.empty() ? UniqueFd() : std::move(descriptors()[0]); }

 private:
  tl::unexpected<Error> explain(const Error& error) const;

  std::string control_socket_;
  UniqueFd socket_;
  std::string pending_;  // the first part of an incomplete answer
  std::vector<UniqueFd> descriptors_;
};

// Sends one request and returns the daemon's answer, which can be a refusal, see accepted().
// Errors: ECONNREFUSED and ENOENT (the daemon has ended), EACCES, ETIMEDOUT, ENODATA (the daemon
// ended during the request), EPROTO. Threads: any.
Result<nlohmann::json> call(const std::string& control_socket, const nlohmann::json& request,
                            std::chrono::milliseconds timeout);

// Turns an answer into a Status: success for {"ok":true,...}, the error of
// {"ok":false,"errno":N,"error":"text"}, EPROTO for any other object.
Status accepted(const nlohmann::json& answer);

// Returns whether a request failed because the daemon had too many clients. Each tree that waits
// for its checkpoint is one client.
bool is_crowded(const Error& error);

}  // namespace ppmr
