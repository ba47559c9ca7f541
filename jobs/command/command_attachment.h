// A client that attaches to its command again has a new connection, for which process 1 of the job
// node starts a new process. This process passes the connection to the process that serves the
// command. For this, each resumable command has a socket in kRunDirectory.
//
// The socket takes datagrams, so that CRIU need not dump a connection between the two processes.
// When the command ends, a file takes the place of the socket. So no request starts the command
// again, even after the job node has moved.
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
  // Errors: EADDRINUSE if a command with this ID runs, or has ended; those of socket(2) and
  // bind(2).
  static Result<AttachmentSocket> create(const std::string& directory, const std::string& id);
  AttachmentSocket(AttachmentSocket&&) = default;

  int fd() const { return socket_.get(); }
  // Receives one attachment. The caller calls this when poll(2) has reported one. Errors: EPROTO;
  // those of recvmsg(2).
  Result<Attachment> receive() const;
  // Refuses later attachments, because the command has ended.
  void retire() const;
  // Makes the ID free again, because the command was not started.
  void withdraw() const;

 private:
  AttachmentSocket(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  std::string path_;
};

// Passes a connection to the process that serves the command. Errors: ENOENT if the job node has no
// trace of the command; ECONNREFUSED if the command has ended; EAGAIN if the process cannot take a
// connection now.
Status pass_attachment(const std::string& directory, const std::string& id,
                       const Attachment& attachment);

}  // namespace ppmr
