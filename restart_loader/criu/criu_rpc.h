// Messages of CRIU's RPC (rpc.proto). One message is one packet of a SOCK_SEQPACKET socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "restart_loader/criu/criu_options.h"

namespace ppmr {

enum class CriuRequest { kDump, kRestore, kOther };

// Returns a request for a dump of the tree at `root`, or for a restore. The configuration file
// names the images, the work directory and the log. CRIU notifies the client of each stage.
std::string criu_request(CriuRequest type, pid_t root, const CriuSettings& settings,
                         const std::string& configuration_file);

// What ppmr reads from the request of a container runtime.
struct CriuRequestFields {
  CriuRequest type = CriuRequest::kOther;
  // Numbers of descriptors in the runtime's process; -1: not given.
  int images_directory = -1;
  int work_directory = -1;
};

// Parses a request. Returns nullopt if the message is not a request of CRIU's RPC.
std::optional<CriuRequestFields> parse_criu_request(const std::string& message);

// Returns the request with other descriptor numbers for its directories. Does not set a
// `work_directory` below 0. Keeps all other fields.
std::string with_directories(const std::string& message, int images_directory, int work_directory);

// Returns the request without its freezer control group, so that CRIU stops the processes one by
// one. CRIU cannot dump a tree that is frozen between vfork(2) and execve(2): the parent waits in
// the kernel until the child executes a program, and the frozen child never does. CRIU then gives
// up after 10 s. Keeps all other fields.
std::string without_freezer(const std::string& message);

// Returns the request with lazy pages (lazy_dump.h). ppmr cannot use a configuration file for that,
// because runc sets this field and CRIU prefers the field. Keeps all other fields.
std::string with_lazy_pages(const std::string& message);

// A notification. CRIU waits for the reply.
struct CriuNotification {
  std::string script;  // "post-dump", "post-restore": the names of action scripts
  pid_t pid = 0;       // the restored process
};

// Parses a notification. Returns nullopt if the message is not a notification.
std::optional<CriuNotification> parse_criu_notification(const std::string& message);

// Returns whether CRIU's response reports success.
bool has_succeeded(const std::string& response);

// Returns the reply to a notification. `go_on`: whether CRIU may continue.
std::string criu_notification_answer(bool go_on);

}  // namespace ppmr
