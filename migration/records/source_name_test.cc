#include "migration/records/source_name.h"

#include <gtest/gtest.h>

#include "rdma_stream/connection/peer_identity.h"

namespace ppmr {
namespace {

std::string owner_of(PeerIdentity::Method method, const std::string& name) {
  return PeerIdentity{.method = method, .name = name}.owner(name);
}

TEST(SourceName, RenamedNodeIsTheSameSourceUnlessACertificateProvesItsName) {
  using enum PeerIdentity::Method;
  for (const auto method : {kNone, kSharedKey}) {
    const SourceName known{owner_of(method, "one"), "id 1"};
    EXPECT_TRUE(is_same_source(known, known));
    EXPECT_TRUE(is_same_source(known, {owner_of(method, "renamed"), "id 1"}));
    EXPECT_TRUE(is_same_source(known, {known.peer, ""}));
    EXPECT_FALSE(is_same_source(known, {owner_of(method, "two"), "id 2"}));
    EXPECT_FALSE(is_same_source(known, {owner_of(kCertificate, "one"), "id 1"}));
  }
  const SourceName proved{owner_of(kCertificate, "one"), "id 1"};
  EXPECT_TRUE(is_same_source(proved, {proved.peer, "id 2"})) << "its disk was replaced";
  EXPECT_FALSE(is_same_source(proved, {owner_of(kCertificate, "two"), "id 1"}));
  EXPECT_FALSE(is_same_source(proved, {owner_of(kSharedKey, "one"), "id 1"}));
}

TEST(SourceName, UnknownNodesAreNotTheSame) {
  const std::string one = owner_of(PeerIdentity::Method::kSharedKey, "one");
  const std::string two = owner_of(PeerIdentity::Method::kSharedKey, "two");
  EXPECT_FALSE(is_same_source({one, ""}, {two, ""}));
}

}  // namespace
}  // namespace ppmr
