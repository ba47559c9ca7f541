// Epochs of one container that is part of a whole, such as a node of a parallel job. Who leads the
// whole says when each step begins (led_messages.h), so that all parts stand still at once: what
// one part has received, the other has sent, in one and the same epoch.
//
// The epoch is kept on this node, so that the part can be rolled back here, and then forwarded to a
// partner, in case this node is lost. While a part is captured and no word of the leader comes, it
// runs on after a time limit, and the epoch has failed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "migration/protect/led_messages.h"
#include "migration/protect/partner.h"
#include "migration/source/live_rounds.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

struct LedSettings {
  std::string container;  // of runc, and the name of its epochs
  std::string here;       // mount point of a source whose target is this node
  std::string partner;    // mount point of a source
  std::string criu;
  LiveLimits limits;
  std::vector<std::string> criu_options;
};

// Threads: one.
class LedEpochs {
 public:
  LedEpochs(LedSettings settings, UniqueFd leader);
  ~LedEpochs();
  // Returns when the leader has closed the socket.
  void run();

 private:
  struct Run;
  // Captures the container, and keeps the epoch on this node.
  Result<led::Report> capture(const led::Epoch& epoch);
  Status forward(const led::Epoch& epoch) const;
  Status begin_run();
  // Waits for a message of the leader. Errors: ETIMEDOUT; ECANCELED for another message.
  template <typename Message>
  Result<Message> await(uint64_t number, std::chrono::milliseconds patience);
  Status report(const led::Report& report);
  Status before_freeze(uint64_t number);
  Status when_captured(uint64_t number);

  const LedSettings settings_;
  const UniqueFd leader_;
  std::string pending_;
  std::optional<led::Epoch> next_;  // came while another message was awaited
  bool has_leader_ = true;
  std::unique_ptr<Run> run_;  // of epochs that follow each other
};

// Adds `ppmr led-epochs`, which has the leader's socket as descriptor kLeaderSocket.
inline constexpr int kLeaderSocket = 3;
void add_led_epochs_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
