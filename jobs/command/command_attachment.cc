#include "jobs/command/command_attachment.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

#include "base/message_socket.h"

namespace ppmr {
namespace {

constexpr const char* kPeer = "another process of the job node";

std::string path_of(const std::string& directory, const std::string& id) {
  return directory + "/command-" + id;
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.size() >= sizeof(address.sun_path))
    return system_failure("use as a socket", path, ENAMETOOLONG);
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

Result<UniqueFd> make_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return system_failure("create a socket for", "further connections to a command");
  return socket;
}

}  // namespace

Result<AttachmentSocket> AttachmentSocket::create(const std::string& directory,
                                                  const std::string& id) {
  const std::string path = path_of(directory, id);
  const auto address = address_of(path);
  if (!address) return failure(address.error());
  auto socket = make_socket();
  if (!socket) return failure(socket.error());
  if (bind(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return system_failure("create the socket", path);
  }
  return AttachmentSocket(std::move(*socket), path);
}

Result<Attachment> AttachmentSocket::receive() const {
  std::vector<UniqueFd> descriptors;
  const auto got = receive_message<OutputPositions>(fd(), kPeer, 1, &descriptors);
  if (!got) return failure(got.error());
  if (descriptors.size() != 1) {
    return failure(EPROTO, std::string(kPeer) + " passed no connection to the command");
  }
  return Attachment{std::move(descriptors[0]), *got};
}

void AttachmentSocket::retire() const {
  const std::string file = path_ + ".ended";
  // If this fails, connect(2) to the old socket still fails with ECONNREFUSED after this process
  // has ended.
  if (UniqueFd(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0400))) {
    (void)rename(file.c_str(), path_.c_str());
  }
}

void AttachmentSocket::withdraw() const { unlink(path_.c_str()); }

Status pass_attachment(const std::string& directory, const std::string& id,
                       const Attachment& attachment) {
  const std::string path = path_of(directory, id);
  const auto address = address_of(path);
  if (!address) return failure(address.error());
  const auto socket = make_socket();
  if (!socket) return failure(socket.error());
  if (connect(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return system_failure("connect to", path);
  }
  return send_message(socket->get(), attachment.got, kPeer, std::span(&attachment.connection, 1));
}

}  // namespace ppmr
