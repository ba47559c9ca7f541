// The few fields of CRIU's RPC (images/rpc.proto of its sources) that are needed to ask CRIU for
// something, or to understand what it and a container runtime say. One message is one packet of a
// SOCK_SEQPACKET socket.
//
// Written by hand: four kinds of message and some fifteen fields would not pay for a protobuf
// compiler.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "restart_loader/criu/criu_options.h"

namespace ppmr {

enum class CriuRequest { kPreDump, kDump, kRestore, kOther };

// Asks for a dump of the tree at `root`, or for a restore; the directories and the log are in the
// configuration file, too. CRIU notifies whoever asks, but for a pre-dump: that one is answered,
// and then another one or the dump is expected.
std::string criu_request(CriuRequest type, pid_t root, const CriuSettings& settings,
                         const std::string& configuration_file);

// What the runtime asks for (criu_req).
struct CriuRequestFields {
  CriuRequest type = CriuRequest::kOther;
  // Numbers of descriptors in the runtime's process; -1: not given.
  int images_directory = -1;
  int work_directory = -1;
};

// nullopt: it is no message of CRIU's RPC.
std::optional<CriuRequestFields> parse_criu_request(std::string_view message);

// The same request with other numbers for its directories, where they were given.
std::string with_directories(std::string message, int images_directory, int work_directory);

// CRIU waits at this point for the runtime's answer (criu_resp of type NOTIFY).
struct CriuNotification {
  std::string script;  // "post-dump", "post-restore": the names of action scripts
  pid_t pid = 0;       // of the restored process
};

// nullopt: another message.
std::optional<CriuNotification> parse_criu_notification(std::string_view message);

// CRIU's answer to a request (criu_resp): whether it has done it.
bool has_succeeded(std::string_view response);

// The runtime's answer to a notification: whether CRIU may go on.
std::string criu_notification_answer(bool go_on);

}  // namespace ppmr
