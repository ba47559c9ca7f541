#include "verbs_library/move/peers.h"

#include <poll.h>

#include <chrono>
#include <thread>

#include "verbs_library/move/conversation.h"
#include "verbs_library/move/directory.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/shadow/log.h"

namespace ppmr::verbs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAskAgain{20};
constexpr milliseconds kAnswerLimit{2000};

std::optional<Message> ask_keys(const EndId& peer, const EndFile& file) {
  Message request;
  request.kind = static_cast<uint8_t>(RequestKind::kKeys);
  request.to = peer;
  request.secret = file.secret;
  Call call;
  call.start(file.control, request);
  const auto end = Clock::now() + kAnswerLimit;
  while (call.state() == Call::State::kRuns && Clock::now() < end) {
    const short events = call.line().has_output() ? POLLIN | POLLOUT : POLLIN;
    pollfd ready = {.fd = call.line().fd(), .events = events, .revents = 0};
    poll(&ready, 1, static_cast<int>(kAskAgain.count()));
    call.advance();
  }
  if (call.state() != Call::State::kAnswered) return std::nullopt;
  const Message answer = call.take_answer();
  if (!answer.is_reply || answer.kind != static_cast<uint8_t>(ReplyKind::kKeys))
    return std::nullopt;
  return answer;
}

}  // namespace

std::optional<FoundPeer> find_peer(const Qp&, const EndId& peer) {
  const auto end = Clock::now() + settings().hold_limit;
  for (;;) {
    const auto file = read_end_file(peer);
    if (!file) return std::nullopt;
    FoundPeer found;
    found.file = *file;
    if (!file->moves && !file->has_moved) return found;
    if (!file->moves) {
      if (const auto answer = ask_keys(peer, *file)) {
        found.has_moved = true;
        found.gid = answer->address.gid;
        found.qpn = answer->address.qpn;
        found.keys = answer->address.keys;
        return found;
      }
    }
    if (Clock::now() > end) {
      log("the peer %s does not answer", file_name_of(peer).c_str());
      return std::nullopt;
    }
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace ppmr::verbs
