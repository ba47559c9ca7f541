// Tests floods of connections: which connections are dropped, and which numbers stay bounded.
#include "rdma_stream/connection/acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <set>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A connection of a peer that is silent, or has sent a hello. It lasts until it is shut down.
class Visitor final : public Connection {
 public:
  Visitor(std::string peer, bool says_hello) : peer_(std::move(peer)) {
    if (says_hello) hello_ = hello();
  }
  Status read(std::span<iovec> buffers, size_t& received_bytes) override {
    std::unique_lock lock(mutex_);
    for (const iovec& buffer : buffers) {
      changed_.wait(lock, [&] { return down_ || hello_.size() >= buffer.iov_len; });
      if (down_) return failure(ECONNRESET, "closed");
      std::copy_n(hello_.begin(), buffer.iov_len, static_cast<std::byte*>(buffer.iov_base));
      hello_.erase(hello_.begin(), hello_.begin() + static_cast<ptrdiff_t>(buffer.iov_len));
      received_bytes += buffer.iov_len;
    }
    return {};
  }
  Result<size_t> read_some(std::span<std::byte>) override { return failure(EIO, "unused"); }
  Result<std::byte> peek() override { return failure(EIO, "unused"); }
  Status write(std::span<iovec> buffers) override {
    std::lock_guard lock(mutex_);
    for (const iovec& buffer : buffers) {
      answer_.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
    }
    return {};
  }
  void set_read_timeout(milliseconds) override {}
  void set_write_timeout(milliseconds) override {}
  void shut_down() override {
    std::lock_guard lock(mutex_);
    down_ = true;
    changed_.notify_all();
  }
  const std::string& peer() const override { return peer_; }

  bool is_down() const {
    std::lock_guard lock(mutex_);
    return down_;
  }
  std::string answer() const {
    std::lock_guard lock(mutex_);
    return answer_;
  }
  void wait_until_down() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return down_; });
  }

 private:
  static std::vector<std::byte> hello() {
    class Recorder final : public Connection {
     public:
      Status read(std::span<iovec>, size_t&) override { return failure(EIO, "unused"); }
      Result<size_t> read_some(std::span<std::byte>) override { return failure(EIO, "unused"); }
      Result<std::byte> peek() override { return failure(EIO, "unused"); }
      Status write(std::span<iovec> buffers) override {
        for (const iovec& buffer : buffers) {
          const auto* begin = static_cast<const std::byte*>(buffer.iov_base);
          bytes.insert(bytes.end(), begin, begin + buffer.iov_len);
        }
        return {};
      }
      void set_read_timeout(milliseconds) override {}
      void set_write_timeout(milliseconds) override {}
      void shut_down() override {}
      const std::string& peer() const override { return name; }
      std::vector<std::byte> bytes;
      std::string name;
    } recorder;
    EXPECT_TRUE(send_handshake(recorder, wire::HandshakeKind::kAgent, wire::AgentHello{"node"}));
    return recorder.bytes;
  }

  const std::string peer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool down_ = false;             // guarded by mutex_
  std::vector<std::byte> hello_;  // guarded by mutex_
  std::string answer_;            // guarded by mutex_
};

class Door final : public Listener {
 public:
  void arrive(std::shared_ptr<Visitor> visitor) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(std::move(visitor));
    changed_.notify_all();
    changed_.wait(lock, [this] { return waiting_.empty(); });
  }
  Result<std::unique_ptr<Connection>> accept() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    if (closed_) return failure(ECANCELED, "closed");
    auto visitor = std::move(waiting_.front());
    waiting_.pop_front();
    changed_.notify_all();
    struct Shared final : Connection {
      explicit Shared(std::shared_ptr<Visitor> visitor) : to(std::move(visitor)) {}
      ~Shared() override { to->shut_down(); }
      Status read(std::span<iovec> buffers, size_t& received) override {
        return to->read(buffers, received);
      }
      Result<size_t> read_some(std::span<std::byte> bytes) override { return to->read_some(bytes); }
      Result<std::byte> peek() override { return to->peek(); }
      Status write(std::span<iovec> buffers) override { return to->write(buffers); }
      void set_read_timeout(milliseconds) override {}
      void set_write_timeout(milliseconds) override {}
      void shut_down() override { to->shut_down(); }
      const std::string& peer() const override { return to->peer(); }
      const std::shared_ptr<Visitor> to;
    };
    return std::make_unique<Shared>(std::move(visitor));
  }
  void close() override {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  const std::string& address() const override { return address_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Visitor>> waiting_;
  bool closed_ = false;
  const std::string address_ = "door";
};

struct Flood : testing::Test {
  Flood() { spdlog::set_level(spdlog::level::off); }
  ~Flood() override { spdlog::set_level(spdlog::level::info); }

  std::shared_ptr<Visitor> arrive(const std::string& host, bool says_hello = false) {
    auto visitor = std::make_shared<Visitor>(host + ":1", says_hello);
    door.arrive(visitor);
    return visitor;
  }
  std::shared_ptr<Visitor> arrive_and_be_served(const std::string& host) {
    const size_t before = served;
    auto visitor = arrive(host, /*says_hello=*/true);
    for (int i = 0; i < 5000 && served == before; ++i) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(served, before + 1) << "not served";
    return visitor;
  }
  // Makes `count` silent peers, from each host in turn.
  std::vector<std::shared_ptr<Visitor>> flood(size_t count, const std::vector<std::string>& hosts) {
    std::vector<std::shared_ptr<Visitor>> all;
    for (size_t i = 0; i < count; ++i) all.push_back(arrive(hosts[i % hosts.size()]));
    // When the acceptor accepts this connection, it has processed all earlier ones.
    arrive("elsewhere");
    return all;
  }
  static size_t open_of(const std::vector<std::shared_ptr<Visitor>>& visitors) {
    return static_cast<size_t>(std::count_if(visitors.begin(), visitors.end(),
                                             [](auto& visitor) { return !visitor->is_down(); }));
  }

  std::atomic<size_t> served = 0;
  Door door;
  Acceptor acceptor{door, std::chrono::seconds(60),
                    [this](const std::shared_ptr<Connection>& connection, const Handshake&) {
                      ++served;
                      std::byte byte;
                      // Blocks until the connection is shut down.
                      (void)connection->read(std::span(&byte, 1));
                      return Status{};
                    }};
};

TEST_F(Flood, OneAddressHoldsHalfOfThePlaces) {
  EXPECT_LE(open_of(flood(1000, {"a"})), 128u);
  arrive_and_be_served("b");
}

TEST_F(Flood, StrangersAreBoundedFromManyAddresses) {
  // Few enough to arrive before the first of them counts as silent.
  const auto all = flood(600, {"a", "b", "c", "d", "e", "f"});
  EXPECT_LE(open_of(all), 256u);
  EXPECT_FALSE(all.front()->is_down()) << "the newest is dropped, not a handshake under way";
  EXPECT_TRUE(all.back()->is_down());
  EXPECT_THAT(all.back()->answer(), testing::HasSubstr("too many connections"));
}

TEST_F(Flood, GuestIsKeptAndItsNextConnectionIsServed) {
  const auto guest = arrive_and_be_served("guest");
  flood(2000, {"a", "b", "c", "d", "e", "f"});
  EXPECT_FALSE(guest->is_down());
  arrive_and_be_served("guest");
  EXPECT_FALSE(guest->is_down());
}

TEST_F(Flood, SilentStrangersMakeRoomForNewConnections) {
  const auto all = flood(300, {"a", "b", "c"});
  EXPECT_GT(open_of(all), 200u);
  std::this_thread::sleep_for(milliseconds(1100));
  arrive_and_be_served("late");
  EXPECT_TRUE(all.front()->is_down());
}

TEST(LogRate, AllowsAFewLinesAndCountsTheOthers) {
  LogRate rate(3, milliseconds(1000));
  const LogRate::Clock::time_point begin{std::chrono::hours(1)};
  int allowed = 0;
  for (int i = 0; i < 100; ++i) allowed += rate.allows(begin + milliseconds(i)) ? 1 : 0;
  EXPECT_EQ(allowed, 3);
  EXPECT_EQ(rate.take_suppressed(begin + milliseconds(500)), 0u);
  EXPECT_EQ(rate.take_suppressed(begin + milliseconds(1000)), 97u);
  EXPECT_EQ(rate.take_suppressed(begin + milliseconds(1000)), 0u);
  EXPECT_TRUE(rate.allows(begin + milliseconds(1000)));
}

}  // namespace
}  // namespace ppmr
