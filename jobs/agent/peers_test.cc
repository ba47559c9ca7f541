#include "jobs/agent/peers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000};

uint16_t free_port() {
  const auto listener = tcp_listener("127.0.0.1:0");
  const std::string address = (*listener)->address();
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

struct Peers : testing::Test {
  Peers() {
    std::filesystem::remove_all(directory);
    std::filesystem::create_directory(directory);
    options.credentials.key_file = make_key("key");
    options.port = free_port();
    server = std::move(*PeerServer::create(
        options.credentials, "127.0.0.1:" + std::to_string(options.port), [](const json& request) {
          return json{{"ok", request.at("op") == "good"}, {"error", "a reason"}, {"seen", request}};
        }));
  }
  std::string make_key(const std::string& name) const {
    const std::string path = directory + "/" + name;
    EXPECT_TRUE(create_key_file(path));
    return path;
  }
  Result<json> ask(const json& request) {
    return ask_peer(options, "127.0.0.1", request, kPatience);
  }

  const std::string directory = testing::TempDir() + "/peers_test_" + std::to_string(getpid());
  PeerOptions options;
  std::unique_ptr<PeerServer> server;
};

TEST_F(Peers, RequestContainsTheNameThatTheSenderUsesForThePeer) {
  const auto answer = ask({{"op", "good"}, {"job", "x"}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->at("seen"), (json{{"op", "good"}, {"job", "x"}, {"asked", "127.0.0.1"}}));
}

TEST_F(Peers, RefusalAndMalformedRequestAreErrors) {
  EXPECT_EQ(ask({{"op", "bad"}}).error().message, "a reason");
  EXPECT_NE(ask({{"nothing", 1}}).error().message.find("malformed request"), std::string::npos);
  const auto out_of_range = ask({{"op", "good"}, {"downtime_s", -1.5}});
  ASSERT_FALSE(out_of_range);
  EXPECT_NE(out_of_range.error().message.find("a number out of range"), std::string::npos)
      << out_of_range.error().message;
}

TEST_F(Peers, PeerWithAnotherKeyIsRefused) {
  options.credentials.key_file = make_key("other");
  EXPECT_FALSE(ask({{"op", "good"}}));
}

TEST_F(Peers, HostThatDoesNotAnswerIsGivenUpBeforeThePatienceEnds) {
  const auto silent = tcp_listener("127.0.0.1:0");  // accepts no connection
  const std::string address = (*silent)->address();
  options.port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const auto began = std::chrono::steady_clock::now();
  const auto answer = ask_peer(options, "127.0.0.1", {{"op", "good"}}, milliseconds(120'000));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().errno_value, ETIMEDOUT) << answer.error().message;
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(60'000));
}

TEST_F(Peers, ServesMoreRequestsThanItHasPlacesForConnections) {
  for (int i = 0; i < 600; ++i) {
    if (i % 50 == 0) server->tidy();
    const auto answer = ask({{"op", "good"}});
    ASSERT_TRUE(answer) << i << ": " << answer.error().message;
  }
}

}  // namespace
}  // namespace ppmr
