#include "tests/stream/wiretap.h"

#include <algorithm>
#include <list>

namespace ppmr {

struct Wiretap::State {
  using Recording = std::vector<std::byte>;

  mutable std::mutex mutex;
  Tamper tamper;                    // guarded by mutex
  std::list<Recording> recordings;  // one per direction of a connection; guarded by mutex
};

namespace {

using Recording = Wiretap::State::Recording;

class TappedConnection final : public Connection {
 public:
  TappedConnection(std::unique_ptr<Connection> connection, std::shared_ptr<Wiretap::State> state,
                   bool carries_payload)
      : connection_(std::move(connection)),
        state_(std::move(state)),
        carries_payload_(carries_payload) {
    std::lock_guard lock(state_->mutex);
    sent_ = &state_->recordings.emplace_back();
    received_ = &state_->recordings.emplace_back();
  }

  using Connection::read;
  using Connection::write;
  Status read(std::span<iovec> buffers, size_t& received_bytes) override {
    const std::vector<iovec> before(buffers.begin(), buffers.end());
    const Status status = connection_->read(buffers, received_bytes);
    size_t left = received_bytes;
    for (const iovec& buffer : before) {
      const size_t length = std::min(left, buffer.iov_len);
      record(*received_, {static_cast<const std::byte*>(buffer.iov_base), length});
      left -= length;
    }
    return status;
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override {
    auto count = connection_->read_some(bytes);
    if (count) record(*received_, bytes.first(*count));
    return count;
  }
  Result<std::byte> peek() override { return connection_->peek(); }
  Status write(std::span<iovec> buffers) override {
    // The source answers a read request with one write: a header, and the payload.
    constexpr size_t kAnswerBuffers = 2;
    std::vector<std::byte> changed;
    if (carries_payload_ && buffers.size() == kAnswerBuffers) {
      iovec& payload = buffers[1];
      const auto* bytes = static_cast<const std::byte*>(payload.iov_base);
      changed.assign(bytes, bytes + payload.iov_len);
      payload.iov_base = changed.data();
      Wiretap::Tamper tamper;
      {
        std::lock_guard lock(state_->mutex);
        tamper = state_->tamper;
      }
      record(*sent_, changed);
      if (tamper) tamper(changed);
    } else {
      for (const iovec& buffer : buffers) {
        record(*sent_, {static_cast<const std::byte*>(buffer.iov_base), buffer.iov_len});
      }
    }
    return connection_->write(buffers);
  }
  void set_read_timeout(std::chrono::milliseconds timeout) override {
    connection_->set_read_timeout(timeout);
  }
  void set_write_timeout(std::chrono::milliseconds timeout) override {
    connection_->set_write_timeout(timeout);
  }
  void shut_down() override { connection_->shut_down(); }
  const std::string& peer() const override { return connection_->peer(); }

 private:
  void record(Recording& recording, std::span<const std::byte> bytes) {
    std::lock_guard lock(state_->mutex);
    recording.insert(recording.end(), bytes.begin(), bytes.end());
  }

  const std::unique_ptr<Connection> connection_;
  const std::shared_ptr<Wiretap::State> state_;
  const bool carries_payload_;
  Recording* sent_;      // element of state_
  Recording* received_;  // element of state_
};

class TappedConnector final : public Connector {
 public:
  TappedConnector(std::unique_ptr<Connector> connector, std::shared_ptr<Wiretap::State> state)
      : connector_(std::move(connector)), state_(std::move(state)) {}

  Result<std::unique_ptr<Connection>> connect(std::chrono::milliseconds timeout) override {
    return tapped(connector_->connect(timeout), /*carries_payload=*/false);
  }
  Result<std::unique_ptr<Connection>> connect_data(std::chrono::milliseconds timeout) override {
    return tapped(connector_->connect_data(timeout), /*carries_payload=*/true);
  }
  const std::string& target() const override { return connector_->target(); }

 private:
  Result<std::unique_ptr<Connection>> tapped(Result<std::unique_ptr<Connection>> connection,
                                             bool carries_payload) {
    if (!connection) return failure(connection.error());
    return std::make_unique<TappedConnection>(std::move(*connection), state_, carries_payload);
  }

  const std::unique_ptr<Connector> connector_;
  const std::shared_ptr<Wiretap::State> state_;
};

}  // namespace

std::shared_ptr<Wiretap::State> Wiretap::make_state() { return std::make_shared<State>(); }

std::unique_ptr<Connector> Wiretap::tap(std::unique_ptr<Connector> connector) {
  return std::make_unique<TappedConnector>(std::move(connector), state_);
}

void Wiretap::set_tamper(Tamper tamper) {
  std::lock_guard lock(state_->mutex);
  state_->tamper = std::move(tamper);
}

bool Wiretap::saw(std::span<const std::byte> bytes) const {
  std::lock_guard lock(state_->mutex);
  return std::any_of(
      state_->recordings.begin(), state_->recordings.end(), [&](const Recording& recording) {
        return std::search(recording.begin(), recording.end(), bytes.begin(), bytes.end()) !=
               recording.end();
      });
}

size_t Wiretap::recorded_bytes() const {
  std::lock_guard lock(state_->mutex);
  size_t sum = 0;
  for (const Recording& recording : state_->recordings) sum += recording.size();
  return sum;
}

}  // namespace ppmr
