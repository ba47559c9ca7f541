// Fuzzes requests in JSON: those of local users, as lines on a control socket, and those of other
// nodes to the migration agent.
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/line_socket.h"
#include "base/parse_json.h"
#include "daemon/control/requests.h"
#include "migration/relay/agent_requests.h"
#include "tests/fuzz/fuzz.h"

namespace {

// Checks that a valid request stays the same when it is written and read again.
template <typename Requests>
void read(const nlohmann::json& json) {
  using namespace ppmr;
  const auto request = read_request<Requests>(json);
  if (!request) return;
  std::visit(
      [](const auto& kind) {
        const auto again = read_request<Requests>(to_request(kind));
        REQUIRE(again);
        std::visit([&](const auto& same) { REQUIRE(to_request(same) == to_request(kind)); },
                   *again);
      },
      *request);
}

}  // namespace

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  constexpr size_t kLineMaxBytes = 256;
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  if (!input.empty() && send(theirs.get(), input.data(), input.size(), MSG_DONTWAIT) < 0) return;
  theirs.reset();
  std::string pending;
  std::string line;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (read_line(ours.get(), pending, line, kLineMaxBytes, deadline)) {
    REQUIRE(line.size() <= kLineMaxBytes);
    const nlohmann::json request = parse_json(line);
    if (request.is_discarded()) continue;
    read<request::ToSource>(request);
    read<request::ToTarget>(request);
    const nlohmann::json copy = request;
    REQUIRE(parse_json(json_text(copy)) == copy);
  }
  read<agent_request::Any>(parse_json(text_of(input)));
}
