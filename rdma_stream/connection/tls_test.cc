// Tests TLS over a connection: authentication, refusals and their reasons, the byte stream.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/connection/tls_connection.h"
#include "rdma_stream/connection/tls_context.h"
#include "tests/stream/certificates.h"
#include "tests/stream/greeting.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

SharedKey key_of(uint8_t byte) {
  SharedKey key;
  key.fill(byte);
  return key;
}

std::shared_ptr<const TlsContext> context_with(std::vector<uint8_t> keys,
                                               const std::string& node = "node",
                                               std::vector<std::string> allowed = {}) {
  std::vector<SharedKey> shared;
  for (const uint8_t byte : keys) shared.push_back(key_of(byte));
  return std::move(TlsContext::with_shared_keys(shared, node, std::move(allowed)).value());
}
std::shared_ptr<const TlsContext> context_with(uint8_t byte) { return context_with({{byte}}); }

// A connection from or to another node.
class RemoteConnection final : public Connection {
 public:
  explicit RemoteConnection(std::shared_ptr<Connection> inner) : inner_(std::move(inner)) {}
  using Connection::read;
  using Connection::write;
  Status read(std::span<iovec> buffers, size_t& received_bytes) override {
    return inner_->read(buffers, received_bytes);
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override { return inner_->read_some(bytes); }
  Result<std::byte> peek() override { return inner_->peek(); }
  Status write(std::span<iovec> buffers) override { return inner_->write(buffers); }
  void set_read_timeout(milliseconds timeout) override { inner_->set_read_timeout(timeout); }
  void set_write_timeout(milliseconds timeout) override { inner_->set_write_timeout(timeout); }
  void shut_down() override { inner_->shut_down(); }
  const std::string& peer() const override { return inner_->peer(); }
  bool is_local() const override { return false; }

 private:
  const std::shared_ptr<Connection> inner_;
};

// The results of both sides of one handshake.
struct Handshakes {
  Result<std::unique_ptr<Connection>> source = failure(EIO, "");
  Result<std::unique_ptr<Connection>> target = failure(EIO, "");
};

struct Tls : testing::Test {
  Tls() : listener(network.listen()), connector(network.connector()) {}

  Handshakes shake(const TlsContext& at_source, const TlsContext& at_target,
                   PeerRole role = PeerRole::kSource, bool remote = false) {
    Handshakes result;
    std::thread target([&] {
      std::shared_ptr<Connection> connection = std::move(*listener->accept());
      if (remote) connection = std::make_shared<RemoteConnection>(std::move(connection));
      result.target = at_target.accept(connection, kPatience);
    });
    result.source = at_source.connect(std::move(*connector->connect(kPatience)), role, kPatience);
    target.join();
    return result;
  }

  FaultyNetwork network;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connector> connector;
};

TEST_F(Tls, AcceptsTheSameKey) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source) << source.error().message;
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_EQ((*source)->peer_identity().text(), "tls-psk");
  EXPECT_EQ((*target)->peer_identity().text(), "tls-psk node");
}

TEST_F(Tls, AKeyIsBoundToTheNodeAndTheRoleThatShowIt) {
  for (const PeerRole role : {PeerRole::kSource, PeerRole::kMigrate, PeerRole::kJobAgent}) {
    auto [source, target] = shake(*context_with({1}, "node1"), *context_with({1}, "node2"), role);
    ASSERT_TRUE(source) << source.error().message;
    ASSERT_TRUE(target) << target.error().message;
    EXPECT_EQ((*target)->peer_identity(),
              (PeerIdentity{PeerIdentity::Method::kSharedKey, "node1", role}));
    EXPECT_EQ((*target)->peer_identity().may_act_as(PeerRole::kMigrate),
              role == PeerRole::kMigrate);
  }
}

TEST_F(Tls, RefusesItsOwnHandshakeThatComesBackFromAnotherAddress) {
  const auto node = context_with({1}, "node1");
  auto here = shake(*node, *node);
  EXPECT_TRUE(here.target) << here.target.error().message;
  auto reflected = shake(*node, *node, PeerRole::kSource, /*remote=*/true);
  ASSERT_FALSE(reflected.target);
  EXPECT_EQ(reflected.target.error().errno_value, EACCES);
  EXPECT_THAT(reflected.target.error().message, HasSubstr("its handshake was sent back here"));
  auto other = shake(*context_with({1}, "node2"), *node, PeerRole::kSource, /*remote=*/true);
  EXPECT_TRUE(other.target) << other.target.error().message;
}

TEST_F(Tls, RefusesAHolderOfTheKeyWhoseNameIsNotAllowed) {
  const auto target = context_with({1}, "target", {"node1"});
  EXPECT_TRUE(shake(*context_with({1}, "node1"), *target).target);
  auto refused = shake(*context_with({1}, "node2"), *target);
  ASSERT_FALSE(refused.target);
  EXPECT_THAT(refused.target.error().message, HasSubstr("'node2'"));
  EXPECT_THAT(refused.target.error().message, HasSubstr("--allow-peer"));
}

TEST_F(Tls, TwoKeysAreValidDuringARotation) {
  const auto old_alone = context_with({1}, "a");
  const auto old_first = context_with({1, 2}, "b");
  const auto new_first = context_with({2, 1}, "c");
  const auto new_alone = context_with({2}, "d");
  const std::pair<const TlsContext*, const TlsContext*> neighbours[] = {
      {old_alone.get(), old_first.get()},
      {old_first.get(), new_first.get()},
      {new_first.get(), new_alone.get()}};
  for (const auto& [one, other] : neighbours) {
    EXPECT_TRUE(shake(*one, *other).target);
    EXPECT_TRUE(shake(*other, *one).target);
  }
  auto refused = shake(*old_alone, *new_alone);
  ASSERT_FALSE(refused.target);
  EXPECT_THAT(refused.target.error().message, HasSubstr("SIGHUP"));
}

TEST(NodeName, MustBeUsableInAnIdentity) {
  for (const std::string name : {"", "a b", "a\nb", "\xff"}) {
    EXPECT_FALSE(TlsContext::with_shared_keys({key_of(1)}, name)) << name;
  }
}

TEST_F(Tls, RefusesAPeerWithAnotherKeyAndBothSidesReportTheReason) {
  auto [source, target] = shake(*context_with(1), *context_with(2));
  ASSERT_FALSE(source);
  ASSERT_FALSE(target);
  EXPECT_EQ(source.error().errno_value, EACCES);
  EXPECT_EQ(target.error().errno_value, EACCES);
  for (const std::string& message : {source.error().message, target.error().message}) {
    EXPECT_NE(message.find("has another key (ppmr-key-" + key_id(key_of(1))), std::string::npos)
        << message;
  }
}

// ---- Certificates ------------------------------------------------------------------------------

struct Certificates : Tls {
  std::shared_ptr<const TlsContext> context(const CertificateFiles& files,
                                            std::vector<std::string> allowed) {
    auto made = TlsContext::with_certificate(files, std::move(allowed));
    EXPECT_TRUE(made) << made.error().message;
    return *made;
  }
  // The target has a valid certificate, trusts `authority` and allows `node1`.
  Handshakes shake_with_target(const TlsContext& at_source) {
    return shake(
        at_source,
        *context(authority.issue({.common_name = "target", .dns_names = {"target"}}), {"node1"}));
  }
  static void expect_refusal(const Handshakes& result, const std::string& reason) {
    ASSERT_FALSE(result.target);
    EXPECT_EQ(result.target.error().errno_value, EACCES);
    EXPECT_THAT(result.target.error().message, HasSubstr(reason));
  }
  // Returns the reason that the source received. If the source's handshake was complete first, the
  // reason arrives as a reject.
  static std::string reason_at_source(Handshakes& result) {
    if (!result.source) return result.source.error().message;
    (*result.source)->set_read_timeout(kPatience);
    auto answer = receive_handshake(**result.source, kPatience);
    return answer ? rejection(**result.source, *answer).message : answer.error().message;
  }

  TestAuthority authority;
};

TEST_F(Certificates, AcceptAPeerByOneOfItsDnsNames) {
  auto result = shake_with_target(
      *context(authority.issue({.common_name = "x", .dns_names = {"a", "node1"}}), {"target"}));
  ASSERT_TRUE(result.source) << result.source.error().message;
  ASSERT_TRUE(result.target) << result.target.error().message;
  EXPECT_EQ((*result.target)->peer_identity().text(), "tls-cert node1");
  EXPECT_EQ((*result.source)->peer_identity().text(), "tls-cert target");
}

TEST_F(Certificates, RefuseAPeerWhoseCommonNameAloneIsAllowed) {
  auto nameless =
      shake_with_target(*context(authority.issue({.common_name = "node1"}), {"target"}));
  expect_refusal(nameless, "the common name does not count");
  auto other = shake_with_target(
      *context(authority.issue({.common_name = "node1", .dns_names = {"node2"}}), {"target"}));
  expect_refusal(other, "'node2'");
}

TEST_F(Certificates, RefuseACertificateForTheOtherRole) {
  auto issue = [&](const std::string& name, const std::string& usage) {
    return authority.issue({.common_name = name, .dns_names = {name}, .extended_key_usage = usage});
  };
  const auto source = context(issue("node1", "clientAuth"), {"target"});
  const auto target = context(issue("target", "serverAuth"), {"node1"});
  EXPECT_TRUE(shake(*source, *target).target);
  auto as_source = shake(*context(issue("node1", "serverAuth"), {"target"}), *target);
  expect_refusal(as_source, "a node that connects needs clientAuth");
  auto as_target = shake(*source, *context(issue("target", "clientAuth"), {"node1"}));
  ASSERT_FALSE(as_target.source);
  EXPECT_THAT(as_target.source.error().message, HasSubstr("one that listens serverAuth"));
}

TEST_F(Certificates, RefuseARevokedCertificate) {
  const auto lost = authority.issue({.common_name = "x", .dns_names = {"node1"}});
  const auto fresh = authority.issue({.common_name = "x", .dns_names = {"node1"}});
  const auto own = authority.issue({.common_name = "target", .dns_names = {"target"}});
  const auto target_with = [&](const std::string& list) {
    auto made = TlsContext::with_certificate(own, {"node1"}, list);
    EXPECT_TRUE(made) << made.error().message;
    return *made;
  };
  const auto target = target_with(authority.revoke({lost}));
  auto refused = shake(*context(lost, {"target"}), *target);
  expect_refusal(refused, "certificate revoked");
  EXPECT_THAT(reason_at_source(refused), HasSubstr("was revoked"));
  auto accepted = shake(*context(fresh, {"target"}), *target);
  EXPECT_TRUE(accepted.target) << accepted.target.error().message;

  auto stale = shake(*context(fresh, {"target"}), *target_with(authority.revoke({}, -3600)));
  expect_refusal(stale, "make a new list");
  TestAuthority foreign("foreign");
  auto without = shake(*context(fresh, {"target"}), *target_with(foreign.revoke({})));
  expect_refusal(without, "the file of --crl has no list of this authority");
  auto missing = TlsContext::with_certificate(own, {"node1"}, "/missing");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("revocation list /missing"));
}

TEST_F(Certificates, EndWhenTheFirstOfTheirFilesEnds) {
  const auto now_s = static_cast<int64_t>(::time(nullptr));
  const auto ends_in_s = [&](const TlsContext& tls) { return *tls.ends_at_s() - now_s; };
  const auto own = authority.issue({.common_name = "node1",
                                    .dns_names = {"node1"},
                                    .valid_from_seconds = -60,
                                    .valid_until_seconds = 1200});
  EXPECT_NEAR(ends_in_s(*context(own, {"target"})), 1200, 60);
  const auto with_list = TlsContext::with_certificate(own, {"target"}, authority.revoke({}, 600));
  ASSERT_TRUE(with_list) << with_list.error().message;
  EXPECT_NEAR(ends_in_s(**with_list), 600, 60);
  EXPECT_EQ(TlsContext::with_shared_keys({key_of(1)}, "node").value()->ends_at_s(), std::nullopt);
}

TEST_F(Certificates, RefuseAPeerThatIsNotAllowed) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"node2"}, {"NODE1"}, {"node1.", "*", "node1.example"}}) {
    auto result = shake_with_target(
        *context(authority.issue({.common_name = "node1", .dns_names = names}), {"target"}));
    expect_refusal(result, "none of its names is allowed");
    EXPECT_THAT(reason_at_source(result), HasSubstr("none of its names is allowed"));
  }
}

TEST_F(Certificates, RefuseAnExpiredCertificate) {
  const auto expired = authority.issue({.common_name = "node1",
                                        .dns_names = {"node1"},
                                        .valid_from_seconds = -7200,
                                        .valid_until_seconds = -3600});
  auto result = shake_with_target(*context(expired, {"target"}));
  expect_refusal(result, "certificate 'node1' of the peer: certificate has expired");
  EXPECT_THAT(reason_at_source(result), HasSubstr("certificate expired"));
}

TEST_F(Certificates, RefuseACertificateThatIsNotValidYet) {
  const auto early = authority.issue({.common_name = "node1",
                                      .dns_names = {"node1"},
                                      .valid_from_seconds = 3600,
                                      .valid_until_seconds = 7200});
  auto result = shake_with_target(*context(early, {"target"}));
  expect_refusal(result, "not yet valid");
  EXPECT_THAT(reason_at_source(result), HasSubstr("the peer refused"));
}

TEST_F(Certificates, BothSidesRefuseACertificateOfAnUnknownAuthority) {
  TestAuthority foreign("foreign");
  auto files = foreign.issue({.common_name = "node1", .dns_names = {"node1"}});
  auto distrusting = shake_with_target(*context(files, {"target"}));
  ASSERT_FALSE(distrusting.source);
  EXPECT_THAT(distrusting.source.error().message, HasSubstr("certificate 'target' of the peer"));
  expect_refusal(distrusting, "unknown CA");

  files.authority = authority.issue({.common_name = "other", .dns_names = {"other"}})
                        .authority;  // trusts the target
  auto distrusted = shake_with_target(*context(files, {"target"}));
  expect_refusal(distrusted, "certificate 'node1' of the peer: unable to get local issuer");
  EXPECT_THAT(reason_at_source(distrusted), HasSubstr("unknown CA"));
}

TEST_F(Certificates, RefuseACertificateOfAForeignAuthorityWithTheSameName) {
  TestAuthority imitation;
  auto files = imitation.issue({.common_name = "node1", .dns_names = {"node1"}});
  files.authority = authority.issue({.common_name = "other", .dns_names = {"other"}}).authority;
  auto result = shake_with_target(*context(files, {"target"}));
  expect_refusal(result, "certificate 'node1' of the peer: certificate signature failure");
  EXPECT_THAT(reason_at_source(result), HasSubstr("did not sign"));
}

TEST_F(Certificates, SourceRefusesATargetWhoseNameIsNotAllowedAndSendsAReject) {
  auto result = shake_with_target(
      *context(authority.issue({.common_name = "node1", .dns_names = {"node1"}}), {"another"}));
  ASSERT_FALSE(result.source);
  EXPECT_THAT(result.source.error().message, HasSubstr("none of its names is allowed"));
  // The source's handshake was complete, and its first message is the reject.
  ASSERT_TRUE(result.target);
  auto answer = receive_handshake(**result.target, kPatience);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->kind, wire::HandshakeKind::kReject);
}

TEST_F(Certificates, RefuseAPeerThatUsesASharedKeyInstead) {
  const auto certificate =
      context(authority.issue({.common_name = "node1", .dns_names = {"node1"}}), {"node1"});
  auto key_at_source = shake(*context_with(1), *certificate);
  EXPECT_FALSE(key_at_source.source);
  EXPECT_FALSE(key_at_source.target);
  EXPECT_THAT(key_at_source.source.error().message,
              HasSubstr("the peer has a certificate, this node a"));
  EXPECT_THAT(key_at_source.target.error().message, HasSubstr("it uses a shared key"));
  auto key_at_target = shake(*certificate, *context_with(1));
  EXPECT_FALSE(key_at_target.source);
  EXPECT_FALSE(key_at_target.target);
  EXPECT_THAT(reason_at_source(key_at_target), HasSubstr("TLS handshake"));
}

TEST_F(Certificates, AreRefusedWithAnErrorThatNamesTheInvalidFile) {
  const auto files = authority.issue({.common_name = "node1", .dns_names = {"node1"}});
  const auto other = authority.issue({.common_name = "node2", .dns_names = {"node2"}});
  const auto error_of = [](const CertificateFiles& wrong) {
    auto made = TlsContext::with_certificate(wrong, {"x"});
    return made ? "" : made.error().message;
  };
  EXPECT_THAT(error_of({files.certificate, other.private_key, files.authority}),
              HasSubstr("does not belong to the certificate"));
  EXPECT_THAT(error_of({files.private_key, files.private_key, files.authority}),
              HasSubstr("certificate " + files.private_key));
  EXPECT_THAT(error_of({files.certificate, files.certificate, files.authority}),
              HasSubstr("private key " + files.certificate));
  EXPECT_THAT(error_of({files.certificate, files.private_key, "/missing"}), HasSubstr("/missing"));
  ::chmod(files.private_key.c_str(), 0644);
  EXPECT_THAT(error_of(files), HasSubstr("other users can access it"));
  ::chmod(files.private_key.c_str(), 0640);
  EXPECT_EQ(error_of(files), "");
}

// ---- The stream --------------------------------------------------------------------------------

TEST_F(Tls, ReadsAndWritesAtTheSameTimeAcrossKeyUpdates) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  std::vector<std::thread> threads;
  for (auto* connection : {source->get(), target->get()}) {
    static_cast<TlsConnection*>(connection)->set_records_per_key(7);
    threads.emplace_back([connection] {
      std::mt19937 random(5);
      std::vector<std::byte> bytes(200'000);
      for (int round = 0; round < 30; ++round) {
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        ASSERT_TRUE(connection->write(std::span<const std::byte>(bytes)));
      }
    });
    threads.emplace_back([connection] {
      std::mt19937 random(5);
      std::vector<std::byte> bytes(200'000);
      for (int round = 0; round < 30; ++round) {
        ASSERT_TRUE(connection->read(std::span<std::byte>(bytes)));
        for (auto byte : bytes) ASSERT_EQ(byte, static_cast<std::byte>(random()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(static_cast<TlsConnection*>(source->get())->key_updates(), 10u);
}

TEST_F(Tls, KeepsTheStreamIntactWhenAReadTimesOut) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  (*source)->set_read_timeout(milliseconds(20));
  std::byte byte{};
  EXPECT_EQ((*source)->read(std::span(&byte, 1)).error().errno_value, ETIMEDOUT);
  const std::byte sent{42};
  ASSERT_TRUE((*target)->write(std::span(&sent, 1)));
  EXPECT_EQ((*source)->peek().value(), sent);
  ASSERT_TRUE((*source)->read(std::span(&byte, 1)));
  EXPECT_EQ(byte, sent);
}

TEST_F(Tls, EndsTheStreamWhenThePeerCloses) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  target->reset();
  std::byte byte{};
  const Status read = (*source)->read(std::span(&byte, 1));
  EXPECT_EQ(read.error().errno_value, ECONNRESET);
}

TEST_F(Tls, ShutDownEndsReadersAndWriters) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  std::atomic<pid_t> reader_id = 0, writer_id = 0;
  std::thread reader([&, &source = source] {
    reader_id = ::gettid();
    std::byte byte{};
    EXPECT_FALSE((*source)->read(std::span(&byte, 1)));
  });
  std::thread writer([&, &source = source] {
    writer_id = ::gettid();
    const std::vector<std::byte> bytes(64 << 10);
    while ((*source)->write(std::span<const std::byte>(bytes))) {
    }
  });
  for (auto* thread : {&reader_id, &writer_id}) {
    EXPECT_TRUE(eventually([&] { return *thread != 0 && thread_sleeps(*thread); }));
  }
  (*source)->shut_down();
  reader.join();
  writer.join();
}

TEST(TlsOverFaults, NeverDeliversADamagedByte) {
  FaultyNetwork network({.seed = 3, .rates = {.corrupt = 0.05}});
  auto listener = network.listen();
  auto connector = network.connector();
  const auto context = context_with(1);
  int damaged = 0;
  for (int round = 0; round < 200; ++round) {
    std::unique_ptr<Connection> target_side;
    std::thread target([&] {
      std::shared_ptr<Connection> connection = std::move(*listener->accept());
      if (auto made = context->accept(connection, milliseconds(200)))
        target_side = std::move(*made);
    });
    auto source_side = context->connect(std::move(*connector->connect(kPatience)),
                                        PeerRole::kSource, milliseconds(200));
    target.join();
    if (!source_side || !target_side) continue;
    const std::vector<std::byte> bytes(20'000, std::byte{7});
    (void)(*source_side)->write(std::span<const std::byte>(bytes));
    target_side->set_read_timeout(milliseconds(50));
    std::vector<std::byte> received(bytes.size());
    if (target_side->read(std::span<std::byte>(received))) {
      ASSERT_EQ(received, bytes);
    } else {
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 5);
}

// ---- Sessions ----------------------------------------------------------------------------------

std::shared_ptr<const Security> security_with_key(uint8_t byte) {
  return std::move(Security::with_shared_key(key_of(byte)).value());
}

TEST(SecureSession, MovesAFileAndSurvivesCutConnections) {
  for (bool tcp : {false, true}) {
    StreamRig rig({.tcp = tcp, .security = security_with_key(1)});
    TestSource source(rig, {});
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    EXPECT_EQ(rig.receiver().sessions().at(0).security, "tls-psk node");
    EXPECT_EQ(source.sender().counters().security, "tls-psk target");
    ASSERT_TRUE(source.claim("checkpoint"));
    TestFile& file = *source.make_file("file").value();
    std::mt19937_64 random(1);
    for (int round = 0; round < 5; ++round) {
      ASSERT_TRUE(source.write(file, file.model.size(), 300'000, random));
      rig.network().cut_all();
    }
    ASSERT_TRUE(source.seal());
    EXPECT_EQ(rig.sink().content(file.node), file.model);
    if (!tcp) {
      EXPECT_GT(source.sender().counters().reconnections, 0u);
    }
  }
}

TEST(SecureSession, RefusesAKeyForAnotherRole) {
  std::mutex mutex;
  std::vector<ConnectionEvent> events;  // guarded by mutex
  StreamRig rig({.security = security_with_key(1), .on_event = [&](const ConnectionEvent& event) {
                   std::lock_guard lock(mutex);
                   events.push_back(event);
                 }});
  for (const PeerRole role : {PeerRole::kMigrate, PeerRole::kJobAgent}) {
    auto connector = security_with_key(1)->secure(rig.network().connector(), role);
    auto connection = connector->connect(kPatience);
    ASSERT_TRUE(connection) << connection.error().message;
    auto welcome = greet_target(**connection, good_hello(), kPatience);
    ASSERT_FALSE(welcome);
    EXPECT_EQ(welcome.error().errno_value, EACCES);
    EXPECT_THAT(welcome.error().message,
                HasSubstr(std::string("a key for the role '") + to_string(role) + "'"));
    ASSERT_TRUE(eventually([&] {
      std::lock_guard lock(mutex);
      return !events.empty();
    })) << "the audit trail needs the refusal";
    std::lock_guard lock(mutex);
    EXPECT_EQ(events.back().outcome, "refused");
    EXPECT_EQ(events.back().service, "source");
    EXPECT_EQ(events.back().peer, "tls-psk node");
    EXPECT_THAT(welcome.error().message, HasSubstr(events.back().reason));
    events.clear();
  }
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

// Uses TCP, which resets a connection that is closed with unread bytes: the reject must arrive
// nevertheless.
TEST(SecureSession, SourceConnectsAgainToATargetThatIsBusy) {
  const auto security = security_with_key(1);
  const auto listener = std::move(security->listener("127.0.0.1:0").value());
  std::thread target([&] {
    for (int i = 0; i < 2; ++i) {
      const auto refused = std::move(*listener->accept());
      EXPECT_TRUE(refused->peek()) << "the source speaks first";
      send_reject(*refused, wire::RejectReason::kBusy, "too many connections");
    }
    EXPECT_TRUE(listener->identify(std::move(*listener->accept()), kPatience));
  });
  const auto connector =
      std::move(security->connector(listener->address(), PeerRole::kSource).value());
  const auto connection = connector->connect(kPatience);
  EXPECT_TRUE(connection) << connection.error().message;
  target.join();
}

TEST(SecureSession, SourceReportsThatTheTargetStaysBusy) {
  const auto security = security_with_key(1);
  const auto listener = std::move(security->listener("127.0.0.1:0").value());
  std::thread target([&] {
    while (const auto connection = listener->accept()) {
      send_reject(**connection, wire::RejectReason::kBusy, "too many connections");
    }
  });
  const auto connector =
      std::move(security->connector(listener->address(), PeerRole::kSource).value());
  const auto connection = connector->connect(milliseconds(300));
  listener->close();
  target.join();
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().errno_value, EBUSY);
  EXPECT_THAT(connection.error().message, HasSubstr("refused: too many connections"));
}

TEST(SecureSession, SourceRefusesATargetWithAnotherName) {
  StreamRig rig({.security = security_with_key(1)});
  auto connector = security_with_key(1)->secure(rig.network().connector());
  auto connection = std::move(connector->connect(kPatience).value());
  EXPECT_TRUE(connector->check_target(*connection, "another"));
  Credentials named;
  named.target_name = "target";
  auto only_target = (*Security::load(named))->secure(rig.network().connector());
  EXPECT_TRUE(only_target->check_target(*connection, "target"));
  const Status refused = only_target->check_target(*connection, "node\n3");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, EACCES);
  EXPECT_THAT(refused.error().message, HasSubstr("'node.3', not 'target' (--target-name)"));
}

TEST(SecureSession, KeysAreReplacedWhileSessionsContinue) {
  TestAuthority files;  // only for its directory
  const std::string path = (files.directory() / "key").string();
  const auto write_keys = [&](const std::string& digits) {
    std::ofstream file(path);
    for (const char digit : digits) file << std::string(64, digit) << "\n";
  };
  write_keys("1");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  Credentials credentials;
  credentials.key_file = path;
  auto target_security = std::move(Security::load(credentials).value());
  auto source_security = std::move(Security::load(credentials).value());
  StreamRig rig({.security = target_security});
  auto connector = source_security->secure(rig.network().connector());
  auto session = std::move(connector->connect(kPatience).value());
  ASSERT_TRUE(greet_target(*session, good_hello(), kPatience));

  write_keys("2");
  ASSERT_TRUE(source_security->reload());
  EXPECT_FALSE(connector->connect(kPatience)) << "the target has only the old key";
  write_keys("12");
  ASSERT_TRUE(target_security->reload());
  EXPECT_TRUE(connector->connect(kPatience)) << "the target has both keys";
  EXPECT_EQ(rig.receiver().sessions().size(), 1u);
  EXPECT_TRUE(rig.receiver().sessions().at(0).connected);

  write_keys("");
  EXPECT_FALSE(target_security->reload());
  EXPECT_TRUE(connector->connect(kPatience)) << "a bad file changes nothing";
}

TEST(SecureSession, RefusesAPlainTextPeerAndAdvisesToUseAKeyFile) {
  StreamRig rig({.security = security_with_key(1)});
  auto connection = std::move(rig.network().connector()->connect(kPatience).value());
  auto welcome = greet_target(*connection, good_hello(), kPatience);
  ASSERT_FALSE(welcome);
  EXPECT_EQ(welcome.error().errno_value, EACCES);
  EXPECT_NE(welcome.error().message.find("--key-file"), std::string::npos);
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST(SecureSession, SourceWithAKeyReportsThatTheTargetHasNoKey) {
  StreamRig rig;
  auto connector = security_with_key(1)->secure(rig.network().connector());
  auto connection = connector->connect(kPatience);
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().errno_value, EACCES);
  EXPECT_NE(connection.error().message.find("this target has none"), std::string::npos)
      << connection.error().message;
}

TEST(SecureSession, IsNotDelayedBySilentOrSlowUnauthenticatedPeers) {
  StreamRig rig({.security = security_with_key(1), .peer_timeout = milliseconds(1000)});
  std::vector<std::unique_ptr<Connection>> peers;
  const std::byte tls_record{SSL3_RT_HANDSHAKE};
  for (int i = 0; i < 300; ++i) {  // more than a target serves at once
    peers.push_back(std::move(rig.network().connector()->connect(kPatience).value()));
    if (i % 2 == 0) (void)peers.back()->write(std::span(&tls_record, 1));
  }
  // The strangers come from the source's own address. They give way to the source when they have
  // been silent for a second.
  const auto open = [&] { return std::unique_ptr<TestSource>(new TestSource(rig, {})); };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  auto source = open();
  while (!source->opened() && std::chrono::steady_clock::now() < deadline) source = open();
  ASSERT_TRUE(source->opened()) << source->opened().error().message;
  ASSERT_TRUE(source->claim("checkpoint"));
  TestFile& file = *source->make_file("file").value();
  std::mt19937_64 random(1);
  ASSERT_TRUE(source->write(file, 0, 300'000, random));
  ASSERT_TRUE(source->seal());
  EXPECT_EQ(rig.sink().content(file.node), file.model);
}

TEST(SecureSession, CannotBeResumedByAPeerWithADifferentCertificate) {
  TestAuthority authority;
  const auto secure = [&](const std::string& name) {
    return std::move(
        Security::load({.certificate = authority.issue({.common_name = name, .dns_names = {name}}),
                        .allowed_peers = {"node1", "node2", "target"}})
            .value());
  };
  StreamRig rig({.security = secure("target")});
  wire::ControlHello hello = good_hello();
  const auto greet = [&](const std::string& name) {
    auto connection = secure(name)->secure(rig.network().connector())->connect(kPatience);
    return greet_target(**connection, hello, kPatience);
  };
  auto opened = greet("node1");
  ASSERT_TRUE(opened) << opened.error().message;
  hello.token = opened->token;
  auto stolen = greet("node2");
  ASSERT_FALSE(stolen);
  EXPECT_EQ(stolen.error().errno_value, ESTALE);
  EXPECT_TRUE(greet("node1"));
}

}  // namespace
}  // namespace ppmr
