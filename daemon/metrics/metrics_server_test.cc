#include "daemon/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>

#include <atomic>
#include <vector>

namespace ppmr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Fixed final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    ++collected;
    if (fails) throw std::runtime_error("no status");
    prometheus::ClientMetric metric;
    metric.gauge.value = 7;
    return {{"seven", "Seven.", prometheus::MetricType::Gauge, {metric}}};
  }
  mutable std::atomic<int> collected = 0;
  std::atomic<bool> fails = false;
};

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address_), length), 0);
    EXPECT_EQ(::listen(listener.get(), 64), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_), &length), 0);
    server_ = std::move(*MetricsServer::start(std::move(listener), metrics_));
  }

  UniqueFd connect() const {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)), 0);
    return socket;
  }

  // Sends a request and returns all bytes that arrive until the server closes the connection.
  std::string ask(const std::string& head) const {
    const UniqueFd socket = connect();
    const std::string request = head + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    (void)!::write(socket.get(), request.data(), request.size());
    std::string answer;
    char bytes[4096];
    for (ssize_t n; (n = ::read(socket.get(), bytes, sizeof(bytes))) > 0;) answer.append(bytes, n);
    return answer;
  }

  Fixed metrics_;
  sockaddr_in address_{};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesTheTextFormat) {
  const std::string answer = ask("GET /metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("# TYPE seven gauge\nseven 7\n"));
}

TEST_F(MetricsServerTest, AnswersOnlyRequestsForMetrics) {
  EXPECT_THAT(ask("GET /"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("GET /metrics/../../etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("DELETE /metrics"), StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(metrics_.collected, 0);
}

TEST_F(MetricsServerTest, SurvivesACollectableThatFails) {
  metrics_.fails = true;
  EXPECT_EQ(ask("GET /metrics"), "");
  metrics_.fails = false;
  EXPECT_THAT(ask("GET /metrics"), HasSubstr("seven 7"));
}

TEST_F(MetricsServerTest, CollectsRarelyDuringAFloodOfScrapes) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) ASSERT_THAT(ask("GET /metrics"), HasSubstr("seven 7"));
  const auto periods = (std::chrono::steady_clock::now() - start) / kReuse;
  EXPECT_LE(metrics_.collected, periods + 2);
}

TEST_F(MetricsServerTest, ClosesIdleConnectionsAndThenServesOthers) {
  std::vector<UniqueFd> idle;
  for (unsigned int i = 0; i < kScrapersMax; ++i) idle.push_back(connect());
  // Waits until one of the idle connections has been closed.
  EXPECT_THAT(ask("GET /metrics"), HasSubstr("seven 7"));
  for (const UniqueFd& socket : idle) {
    pollfd closed{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&closed, 1, 2000 * static_cast<int>(kScraperTimeout.count())), 1);
  }
}

}  // namespace
}  // namespace ppmr
