// How the connection of a client that attaches again gets to the process that serves its command: a
// socket in kRunDirectory for each resumable command. Process 1 of the job node starts a process
// for each connection, and that process passes the connection on.
//
// The socket takes datagrams, so that no connection between the two exists that CRIU must dump.
// When the command ends, a file takes the place of the socket: no request starts the command again,
// even after the job node has moved.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "jobs/command/command.h"

namespace ppmr {

struct Attachment {
  UniqueFd connection;
  OutputPositions got;
};

// The socket of one command. Threads: one.
class AttachmentSocket {
 public:
  // Errors: EADDRINUSE if a command with this ID is there, or was; those of socket(2) and bind(2).
  static Result<AttachmentSocket> create(const std::string& directory, const std::string& id);
  AttachmentSocket(AttachmentSocket&&) = default;

  int fd() const { return socket_.get(); }
  // Receives what poll(2) has reported. Errors: EPROTO; those of recvmsg(2).
  Result<Attachment> receive() const;
  // The command has ended: refuses later attachments.
  void retire() const;
  // The command was not started: the same ID may be used again.
  void withdraw() const;

 private:
  AttachmentSocket(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  std::string path_;
};

// Passes a connection to the process that serves the command. Errors: ENOENT if the job node has no
// trace of the command; ECONNREFUSED if the command has ended; EAGAIN if the process takes none
// now.
Status pass_attachment(const std::string& directory, const std::string& id,
                       const Attachment& attachment);

}  // namespace ppmr
