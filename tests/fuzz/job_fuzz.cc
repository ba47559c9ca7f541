// Fuzzes the messages of jobs: frames and requests at a job node's command port, the messages
// between agents, and those of the directory of peers. The first byte of an input selects the kind.
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "base/parse_json.h"
#include "jobs/command/command.h"
#include "jobs/command/frame_socket.h"
#include "jobs/command/peer_directory_server.h"
#include "jobs/node/node_spec.h"
#include "tests/fuzz/fuzz.h"

namespace ppmr {
namespace {

void check_frames(std::span<const uint8_t> input) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  FrameSocket frames{UniqueFd(ends[0])};
  UniqueFd peer(ends[1]);
  if (!input.empty() && send(peer.get(), input.data(), input.size(), MSG_DONTWAIT) < 0) return;
  peer.reset();
  while (frames.receive()) {
  }
  for (;;) {
    const auto frame = frames.next();
    if (!frame || !*frame) return;
    REQUIRE((*frame)->payload.size() <= input.size());
  }
}

void check_request(const std::string& text) {
  const auto request = parse_command_request(text);
  if (!request) return;
  REQUIRE(!request->argv.empty());
  const auto again = parse_command_request(to_text(*request));
  REQUIRE(again && again->argv == request->argv && again->environment == request->environment);
  REQUIRE(again->resumption.has_value() == request->resumption.has_value());
}

void check_messages(const std::string& text) {
  const nlohmann::json message = parse_json(text);
  if (const auto spec = parse_node_spec(message)) {
    REQUIRE(is_job_container(spec->container()));
    const auto again = parse_node_spec(to_json(*spec));
    REQUIRE(again && to_json(*again) == to_json(*spec));
  }
  (void)parse_command_end(text);
  (void)parse_input_positions(text);
}

void check_directory(const std::string& text) {
  PeerDirectory directory("token");
  REQUIRE(to_text(directory.answer(text)).size() <= kDirectoryTextMax + 1);
  (void)parse_directory_reply(text);
  auto request = parse_directory_request(text);
  if (!request) return;
  REQUIRE(to_text(*request) == text);
  request->token = "token";
  request->op = DirectoryOp::kWrite;
  REQUIRE(directory.answer(to_text(*request)).code == DirectoryCode::kDone);
  request->op = DirectoryOp::kGet;
  REQUIRE(directory.answer(to_text(*request)).text == request->text);
}

}  // namespace
}  // namespace ppmr

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  if (input.empty()) return;
  const auto rest = input.subspan(1);
  switch (input[0] % 4) {
    case 0:
      return check_frames(rest);
    case 1:
      return check_request(text_of(rest));
    case 2:
      return check_messages(text_of(rest));
    case 3:
      return check_directory(text_of(rest));
  }
}
