// The client's half of the control socket (see control_socket.h). Nothing here touches a mount, so
// nothing here can hang with one.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

// One request and its answer, for callers that want to do something while they wait. Threads: one.
class ControlCall {
 public:
  Status send(const std::string& control_socket, const nlohmann::json& request,
              std::chrono::milliseconds timeout);
  // Can be called again after ETIMEDOUT.
  Result<nlohmann::json> answer(std::chrono::milliseconds timeout);

 private:
  tl::unexpected<Error> explain(const Error& error) const;

  std::string control_socket_;
  UniqueFd socket_;
  std::string pending_;  // of an answer that has not arrived as a whole
};

// One request, one answer, as the daemon gave it. Errors are of the way there: ECONNREFUSED and
// ENOENT (no such daemon any more), EACCES, ETIMEDOUT, ENODATA (the daemon died while it was at
// it), EPROTO. Threads: any.
Result<nlohmann::json> call(const std::string& control_socket, const nlohmann::json& request,
                            std::chrono::milliseconds timeout);

// The refusal in an answer: {"ok":false,"errno":N,"error":"text"}, or whatever else is not ok.
Status accepted(const nlohmann::json& answer);

}  // namespace ppmr
