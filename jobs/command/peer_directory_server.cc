#include "jobs/command/peer_directory_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <list>
#include <vector>

#include "jobs/command/command.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kClientsMax = 1024;  // others wait in the queue of the listener
constexpr std::chrono::seconds kClientPatience{10};

struct Client {
  UniqueFd socket;
  Clock::time_point deadline;
  std::string request{};
};

// Receives from the client, or replies to it. Returns whether its request is not complete yet. A
// reply fits into the socket's buffer, so sending it does not block.
bool serve(Client& client, PeerDirectory& directory) {
  char piece[2048];
  const ssize_t size = recv(client.socket.get(), piece, sizeof(piece), 0);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size > 0) {
    client.request.append(piece, static_cast<size_t>(size));
    return client.request.size() <= kDirectoryRequestMax;
  }
  const std::string reply = to_text(directory.answer(client.request));
  (void)send(client.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
  return false;
}

}  // namespace

DirectoryReply PeerDirectory::answer(std::string_view text) {
  const auto request = parse_directory_request(text);
  if (!request || !equal_tokens(request->token, token_)) return {DirectoryCode::kRefused};
  const auto found = texts_.find(request->name);
  const bool is_there = found != texts_.end();
  switch (request->op) {
    case DirectoryOp::kGet:
      if (!is_there) return {DirectoryCode::kNone};
      return {DirectoryCode::kDone, found->second};
    case DirectoryOp::kRemove:
      if (is_there) texts_.erase(found);
      return {DirectoryCode::kDone};
    case DirectoryOp::kCreate:
      if (is_there) return {DirectoryCode::kTaken};
      break;
    case DirectoryOp::kWrite:
      break;
  }
  if (!is_there && texts_.size() >= names_max_) return {DirectoryCode::kRefused};
  texts_[request->name] = request->text;
  return {DirectoryCode::kDone};
}

Result<UniqueFd> listen_for_peers(uint16_t port) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  if (!listener || setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return system_failure("listen on", "port " + std::to_string(port));
  }
  return listener;
}

void serve_peer_directory(const UniqueFd& listener, const std::string& token) {
  PeerDirectory directory(token);
  std::list<Client> clients;
  for (;;) {
    std::vector<pollfd> ready{{clients.size() < kClientsMax ? listener.get() : -1, POLLIN, 0}};
    for (const Client& client : clients) ready.push_back({client.socket.get(), POLLIN, 0});
    if (poll(ready.data(), ready.size(), clients.empty() ? -1 : 1000) < 0) continue;
    const auto now = Clock::now();
    size_t at = 1;
    for (auto client = clients.begin(); client != clients.end(); ++at) {
      const bool stays =
          now < client->deadline && (ready[at].revents == 0 || serve(*client, directory));
      client = stays ? std::next(client) : clients.erase(client);
    }
    if (ready[0].revents == 0) continue;
    UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) clients.push_back({std::move(socket), now + kClientPatience});
  }
}

}  // namespace ppmr
