// Tests hellos that the target must refuse: the reject names the reason, and no session opens.

#include "tests/stream/greeting.h"

#include "base/crc32c.h"
#include "rdma_stream/connection/session_proof.h"

namespace ppmr {
namespace {

TEST_F(Greeting, RefusesAnotherProtocol) {
  auto connection = connect();
  ASSERT_TRUE(connection->write(bytes_of("GET / HTTP/1.1\r\n\r\n")));
  auto answer = receive_handshake(*connection, kPatience);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->kind, wire::HandshakeKind::kReject);
  const auto reject = wire::decode<wire::Reject>(answer->body);
  EXPECT_NE(reject->text.find("GET / HTTP/1"), std::string::npos) << reject->text;
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST_F(Greeting, RefusesAHelloOfAnotherProtocolVersionAndNamesTheReason) {
  auto connection = connect();
  wire::HandshakePrefix prefix;
  prefix.version = wire::kVersion + 1;
  ASSERT_TRUE(connection->write(wire::encode(prefix)));
  auto answer = receive_handshake(*connection, kPatience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(wire::decode<wire::Reject>(answer->body)->reason, wire::RejectReason::kVersion);
}

TEST_F(Greeting, RefusesADamagedHello) {
  auto connection = connect();
  wire::HandshakePrefix prefix;
  const auto body = wire::encode(good_hello());
  prefix.length = static_cast<uint32_t>(body.size());
  auto bytes = wire::encode(prefix);
  bytes.insert(bytes.end(), body.begin(), body.end());
  const auto crc = wire::encode(crc32c(bytes));
  bytes[20] ^= std::byte{1};
  bytes.insert(bytes.end(), crc.begin(), crc.end());
  ASSERT_TRUE(connection->write(bytes));
  auto answer = receive_handshake(*connection, kPatience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, wire::HandshakeKind::kReject);
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST_F(Greeting, RefusesAHelloWithNumbersOutOfRange) {
  for (auto spoil : std::initializer_list<void (*)(wire::ControlHello&)>{
           [](auto& hello) { hello.slot_count = 0; },
           [](auto& hello) { hello.slot_count = wire::kSlotsMax + 1; },
           [](auto& hello) { hello.chunk_size_bytes = 0; },
           [](auto& hello) { hello.chunk_size_bytes = UINT32_MAX; },
           [](auto& hello) { hello.stream_count = 0; },
           [](auto& hello) { hello.stream_count = wire::kStreamsMax + 1; },
           [](auto& hello) { hello.source_name.assign(256, 'x'); }}) {
    auto hello = good_hello();
    spoil(hello);
    EXPECT_EQ(refusal(hello).errno_value, ECONNREFUSED);
  }
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST_F(Greeting, RefusesAnUnknownSession) {
  auto hello = good_hello();
  hello.token = random_token();
  const Error error = refusal(hello);
  EXPECT_EQ(error.errno_value, ESTALE);
  EXPECT_NE(error.message.find("restarted"), std::string::npos) << error.message;
}

TEST_F(Greeting, DataConnectionRequiresTheTokenOfItsSession) {
  auto control = connect();
  const auto hello = good_hello();
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  for (const auto& [session, token, errno_value] :
       std::vector<std::tuple<wire::Token, wire::Token, int>>{
           {hello.session, wire::Token{}, ESTALE},
           {hello.session, random_token(), ESTALE},
           {random_token(), welcome->token, ESTALE},
           {hello.session, welcome->token, 0}}) {
    auto data = connect();
    const Status greeted =
        greet_target(*data, {.session = session, .attempt = 1}, token, kPatience);
    EXPECT_EQ(greeted ? 0 : greeted.error().errno_value, errno_value);
  }
  // The token is right, but the session does not have the stream, so the target closes the
  // connection.
  auto data = connect();
  (void)greet_target(*data, {.session = hello.session, .stream = 7, .attempt = 1}, welcome->token,
                     kPatience);
  data->set_read_timeout(kPatience);
  std::byte byte{};
  EXPECT_EQ(data->read(std::span(&byte, 1)).error().errno_value, ECONNRESET);
}

TEST_F(Greeting, RefusesAReplayedOrDelayedHelloOfADataConnection) {
  auto control = connect();
  const auto hello = good_hello();
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  const auto greet = [&](uint64_t attempt) {
    auto data = connect();
    const Status greeted = greet_target(*data, {.session = hello.session, .attempt = attempt},
                                        welcome->token, kPatience);
    return greeted ? std::string() : greeted.error().message;
  };
  EXPECT_EQ(greet(1), "");
  EXPECT_NE(greet(1).find("used before"), std::string::npos);  // replayed
  EXPECT_EQ(greet(5), "");
  EXPECT_NE(greet(4).find("used before"), std::string::npos);  // delayed
  EXPECT_EQ(greet(6), "");
}

TEST_F(Greeting, ProofOfTheTokenIsValidOnlyForItsStreamAndAttempt) {
  auto control = connect();
  auto hello = good_hello();
  hello.stream_count = 2;
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  const auto proof = session_proof(Prover::kSource, welcome->token, hello.session, 0, 1);
  for (const wire::DataHello& stolen :
       {wire::DataHello{hello.session, 1, 1, proof}, wire::DataHello{hello.session, 0, 2, proof},
        wire::DataHello{hello.session, 0, 1,
                        session_proof(Prover::kTarget, welcome->token, hello.session, 0, 1)}}) {
    auto data = connect();
    ASSERT_TRUE(send_handshake(*data, wire::HandshakeKind::kData, stolen));
    EXPECT_EQ(receive_handshake(*data, kPatience)->kind, wire::HandshakeKind::kReject);
  }
}

TEST_F(Greeting, DataConnectionNeverCarriesTheToken) {
  auto control = connect();
  const auto hello = good_hello();
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  auto data = connect();
  wire::DataHello data_hello{.session = hello.session, .attempt = 1};
  data_hello.proof = session_proof(Prover::kSource, welcome->token, hello.session, 0, 1);
  ASSERT_TRUE(send_handshake(*data, wire::HandshakeKind::kData, data_hello));
  auto answer = receive_handshake(*data, kPatience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, wire::HandshakeKind::kWelcome);
  const auto token = std::as_bytes(std::span(welcome->token));
  for (const auto& sent : {wire::encode(data_hello), answer->body}) {
    EXPECT_EQ(std::search(sent.begin(), sent.end(), token.begin(), token.end()), sent.end());
  }
}

TEST_F(Greeting, GarbageNeverOpensASession) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    auto connection = connect();
    std::vector<std::byte> bytes(1 + random() % 200);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (round % 2 == 0) {
      auto prefix =
          wire::encode(wire::HandshakePrefix{.kind = static_cast<wire::HandshakeKind>(random() % 6),
                                             .length = static_cast<uint32_t>(random() % 1500)});
      bytes.insert(bytes.begin(), prefix.begin(), prefix.end());
    }
    (void)connection->write(bytes);
  }
  EXPECT_TRUE(eventually([&] { return rig.connector()->connect(kPatience).has_value(); }));
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

}  // namespace
}  // namespace ppmr
