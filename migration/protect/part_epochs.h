// Captures epochs of one container that is part of a whole, such as a node of a parallel job. The
// leader of the whole starts each step (part_messages.h), so that all parts stand still at the same
// time. So the epochs of all parts fit together: if one part has received a message, the other part
// has sent it.
//
// This node keeps the epoch, so that the part can roll back here, and then forwards it to a
// partner, in case this node is lost. If a part stands still and no message of the leader arrives,
// the part runs on after a time limit, and the epoch fails. The leader can also hold a part: it
// then stands still from its epoch on, until the leader releases or ends it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "migration/protect/epoch_dump.h"
#include "migration/protect/part_messages.h"
#include "migration/protect/partner.h"
#include "migration/source/live_rounds.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

struct PartSettings {
  std::string container;  // of runc, and the name of its epochs
  std::string here;       // mount point of a source whose target is this node
  std::string partner;    // mount point of a source; empty: no other node keeps the epochs
  std::string criu;
  LiveLimits limits;
  std::vector<std::string> criu_options;
};

// Threads: one.
class PartEpochs {
 public:
  PartEpochs(PartSettings settings, UniqueFd leader);
  ~PartEpochs();
  // Returns when the leader has closed the socket.
  void run();

 private:
  struct Run;
  // Captures the container, and keeps the epoch on this node.
  Result<part_message::Report> capture(const part_message::Epoch& epoch);
  Status forward(const part_message::Epoch& epoch) const;
  Status keep(Run& run, const part_message::Epoch& epoch, SentEpoch& sent);
  // Reports that the epoch is kept, and returns when the container may run on. Errors: those of
  // await().
  Status hold(Run& run, const part_message::Epoch& epoch, SentEpoch sent);
  Status begin_run();
  // Waits for a message of the leader. Errors: ETIMEDOUT; ECANCELED for another message.
  template <typename Message>
  Result<Message> await(uint64_t number, std::chrono::milliseconds patience);
  Status report(const part_message::Report& report);
  Status before_freeze(uint64_t number);
  Status when_captured(uint64_t number);

  const PartSettings settings_;
  const UniqueFd leader_;
  std::string pending_;
  std::optional<part_message::Epoch> next_;  // arrived in place of an awaited message
  bool has_leader_ = true;
  std::unique_ptr<Run> run_;  // of epochs that follow each other
};

// Adds `ppmr part-epochs`, which has the leader's socket as descriptor kLeaderSocket.
inline constexpr int kLeaderSocket = 3;
void add_part_epochs_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
