// Messages between ends over InfiniBand verbs, in order and each once, while ppmr moves the ends.
//
// A connection to a partner is made when there is something to send, and can end at any time. A
// message stays in its queue until the partner acknowledges it. After a reconnect all messages that
// are not acknowledged are sent again, and the partner discards those that it has already. So no
// end needs to know why a connection ended, and only the end that moves takes part in its release:
//
//   ppmr --release--> this end: tells each partner that it shuts the connection down, waits briefly
//                     for the answers, destroys everything of RDMA and TCP, answers ppmr
//   ppmr --resume---> this end: opens the device of the machine on which it is now, announces its
//                     new address; connections are made on demand
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jobs/rdma_release.h"
#include "tests/verbs_messages/rendezvous.h"
#include "tests/verbs_messages/verbs_device.h"

namespace verbs_messages {

inline constexpr size_t kMessageBytesMax = 64 << 10;

// Threads: one. Functions throw Failure when the device or the announcement fails at the start, and
// when a partner breaks the protocol.
class Messenger {
 public:
  using Clock = std::chrono::steady_clock;
  using Deliver = std::function<void(const std::string& from, std::span<const std::byte> message)>;
  struct Counters {
    uint64_t connections = 0;
    uint64_t broken = 0;      // connections that ended without a shutdown
    uint64_t sent_again = 0;  // messages sent again
    uint64_t discarded = 0;   // messages that were received again
    uint64_t releases = 0;
    uint64_t resumes = 0;
  };

  // `directory`: shared by all ends, for their addresses. `deliver` is called by progress() for
  // each message, once.
  Messenger(std::string name, std::filesystem::path directory, Deliver deliver);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // Queues a message of at most kMessageBytesMax. Returns false if the queue is full; try again
  // after progress().
  bool send(const std::string& to, std::span<const std::byte> message);
  // Returns how many messages to this partner it has acknowledged.
  uint64_t acknowledged(const std::string& by);
  // Does all work that is possible now. If there is none, waits up to `patience` for some.
  void progress(std::chrono::milliseconds patience);
  // Call before the end of the process: shuts all connections down, as for a release.
  void leave();

  // Returns whether this end obeys a request to release now.
  bool is_releasing() const { return releasing_; }
  // Returns whether this end has released RDMA and not resumed.
  bool is_away() const { return !device_; }
  const Counters& counters() const { return counters_; }

 private:
  struct Peer {
    explicit Peer(std::string its_name) : name(std::move(its_name)) {}
    const std::string name;

    // Messages to the partner. The front of the queue has the number `first`. The first `posted`
    // messages of the queue were sent on this connection. `tried`: the highest number that was sent
    // on any connection.
    std::deque<std::vector<std::byte>> queue;
    uint64_t first = 1;
    size_t posted = 0;
    uint64_t tried = 0;

    // Messages from the partner: the last number, and the last number that this end has
    // acknowledged.
    uint64_t received = 0;
    uint64_t confirmed = 0;

    // The connection. `exchange` exists while it is being made. `is_open`: this end can send.
    std::unique_ptr<QueuePair> pair;
    std::optional<Exchange> exchange;
    bool is_active = false;  // this end connects, the partner accepts
    bool is_open = false;
    Clock::time_point exchange_deadline;
    Clock::time_point retry_at;
    std::chrono::milliseconds retry_delay{0};

    // The shutdown of the connection. `says_shutdown`: this end must send a shutdown.
    // `has_said_shutdown`: it was sent. `has_answer`: the partner has answered it. `owes_answer`:
    // the partner has sent a shutdown. `has_answered`: this end has answered that one.
    bool says_shutdown = false, has_said_shutdown = false, has_answer = false;
    bool owes_answer = false, has_answered = false;
  };
  enum class Kind : uint32_t { kData = 1, kAcknowledgement, kShutdown, kAnswer };
  struct Head {
    Kind kind = Kind::kData;
    uint32_t length = 0;        // length of the body
    uint64_t number = 0;        // number of the message
    uint64_t acknowledged = 0;  // every message up to this number has arrived
  };

  Peer& peer(const std::string& name);

  // Messages (messenger.cc).
  void poll_completions();
  void complete(Peer& peer, const ibv_wc& completion);
  void receive(Peer& peer, const Head& head, std::span<const std::byte> body);
  void receive_data(Peer& peer, const Head& head, std::span<const std::byte> body);
  void acknowledge_up_to(Peer& peer, uint64_t number);
  void post(Peer& peer, Kind kind, uint64_t number, std::span<const std::byte> body);
  void post_messages(Peer& peer);
  std::chrono::milliseconds wait_max(std::chrono::milliseconds patience) const;
  void wait(std::chrono::milliseconds patience);

  // Connections, release and resume (connections.cc).
  void open();
  void begin_release();
  void continue_release();
  void resume();
  void obey(ppmr_rdma_request request);
  void accept_strangers();
  void welcome(Exchange exchange, const Hello& hello);
  void make_connections();
  void begin_exchange(Peer& peer);
  void continue_exchange(Peer& peer);
  void make_pair(Peer& peer);
  void set_open(Peer& peer);
  void disconnect(Peer& peer);
  void retry_later(Peer& peer);
  void lose(Peer& peer, const std::string& why);

  const std::string name_;
  const std::filesystem::path directory_;
  const Deliver deliver_;
  ppmr_rdma rdma_{};
  std::map<std::string, std::unique_ptr<Peer>> peers_;
  Counters counters_;
  uint32_t last_pair_id_ = 0;

  bool releasing_ = false;
  bool leaving_ = false;  // leave() was called: no resume
  Clock::time_point release_deadline_;
  Clock::time_point resume_retry_at_;

  // The device of the queue pairs in `peers_`; null while this end is away.
  std::unique_ptr<Device> device_;
  std::unique_ptr<Rendezvous> rendezvous_;
  struct Stranger {  // a TCP connection whose end has not sent its name yet
    Exchange exchange;
    Clock::time_point deadline;
  };
  std::vector<std::unique_ptr<Stranger>> strangers_;
};

}  // namespace verbs_messages
