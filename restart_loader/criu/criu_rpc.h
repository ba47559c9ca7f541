// Messages of CRIU's RPC (rpc.proto). One message is one packet of a SOCK_SEQPACKET socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "restart_loader/criu/criu_options.h"

namespace ppmr {

enum class CriuRequest { kPreDump, kDump, kRestore, kOther };

// A request for a pre-dump or dump of the tree at `root`, or for a restore. The images, the work
// directory and the log are in the configuration file. CRIU notifies the client of each stage of
// a dump or restore. It sends only a reply for a pre-dump, and then accepts another request.
std::string criu_request(CriuRequest type, pid_t root, const CriuSettings& settings,
                         const std::string& configuration_file);

// A request of a container runtime.
struct CriuRequestFields {
  CriuRequest type = CriuRequest::kOther;
  // Descriptor numbers in the runtime's process; -1: not given.
  int images_directory = -1;
  int work_directory = -1;
};

// nullopt: not a request of CRIU's RPC.
std::optional<CriuRequestFields> parse_criu_request(const std::string& message);

// Sets the descriptor numbers of the directories in a request; a `work_directory` below 0 is not
// set. Keeps all other fields.
std::string with_directories(const std::string& message, int images_directory, int work_directory);

// Removes the freezer control group from a request, so that CRIU stops the processes one by one.
// CRIU cannot dump a tree that is frozen between vfork(2) and execve(2): the parent waits in the
// kernel until the child executes a program, which the frozen child never does. CRIU then gives up
// after 10 s. Keeps all other fields.
std::string without_freezer(const std::string& message);

// Makes the dump that a request asks for a lazy one (lazy_dump.h). A configuration file cannot:
// runc sets the field, and CRIU prefers the field. Keeps all other fields.
std::string with_lazy_pages(const std::string& message);

// CRIU waits for the reply to a notification.
struct CriuNotification {
  std::string script;  // "post-dump", "post-restore": the names of action scripts
  pid_t pid = 0;       // of the restored process
};

// nullopt: not a notification.
std::optional<CriuNotification> parse_criu_notification(const std::string& message);

// Whether CRIU's response reports success.
bool has_succeeded(const std::string& response);

// The reply to a notification: whether CRIU may continue.
std::string criu_notification_answer(bool go_on);

}  // namespace ppmr
