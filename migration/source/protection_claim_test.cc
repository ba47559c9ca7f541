#include "migration/source/protection_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/test_directory.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::HasSubstr;

constexpr ProcessIdentity kServer{40, 400}, kWorker{41, 410}, kOther{50, 500};

std::vector<ProcessIdentity> family(const ProcessIdentity& root) {
  if (root == kServer) return {kServer, kWorker};
  return {root};
}

class Protections : public testing::Test {
 protected:
  std::optional<ProtectionClaim> find(const ProcessIdentity& wanted) const {
    const auto claim = find_protection({wanted}, family, directory_);
    EXPECT_TRUE(claim) << claim.error().message;
    return claim ? *claim : std::nullopt;
  }

  const TestDirectory test_directory_;
  const std::string directory_ = test_directory_.path();
};

TEST_F(Protections, ProcessAndDescendantsAreClaimedWhileTheHolderLives) {
  auto lock = lock_protection("db", directory_);
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_FALSE(find(kServer)) << "locked, but not claimed yet: its own checks must pass";
  ASSERT_TRUE(claim_protection(*lock, {"db", kServer, 77}));
  ASSERT_TRUE(find(kServer));
  ASSERT_TRUE(find(kWorker));
  EXPECT_FALSE(find(kOther));
  EXPECT_FALSE(find({kServer.pid, 1})) << "a later process with the same pid";
  EXPECT_THAT(describe_protection(*find(kWorker)),
              testing::AllOf(HasSubstr("process 40 is protected as db by pid 77"),
                             HasSubstr("kill 77"), HasSubstr("takeover --discard db")));
  lock = UniqueFd();
  EXPECT_FALSE(find(kServer)) << "its holder has ended";
}

TEST_F(Protections, NameIsHeldOnceAndItsNextHolderBeginsEmpty) {
  auto lock = lock_protection("db", directory_);
  ASSERT_TRUE(lock);
  ASSERT_TRUE(claim_protection(*lock, {"db", kServer, 77}));
  const auto second = lock_protection("db", directory_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().errno_value, EBUSY);
  EXPECT_THAT(second.error().message, HasSubstr("another ppmr protect has the name db"));
  lock = UniqueFd();
  lock = lock_protection("db", directory_);
  ASSERT_TRUE(lock);
  EXPECT_FALSE(find(kServer));
}

TEST_F(Protections, MalformedFilesClaimNothing) {
  for (const char* text : {"", "{}", "[1]", "{\"name\":1,\"pid\":40}", "no JSON"}) {
    const auto lock = lock_protection("db", directory_);
    ASSERT_TRUE(lock);
    std::ofstream(directory_ + "/protect-db.lock") << text;
    EXPECT_FALSE(find(kServer)) << text;
  }
  const auto missing = find_protection({kServer}, family, directory_ + "/missing");
  ASSERT_TRUE(missing) << missing.error().message;
  EXPECT_FALSE(*missing);
}

// If files cannot be opened, ppmr cannot know whether the process is protected.
TEST_F(Protections, ErrorIsNotTakenForAMissingProtection) {
  const auto lock = lock_protection("db", directory_);
  ASSERT_TRUE(lock);
  ASSERT_TRUE(claim_protection(*lock, {"db", kServer, 77}));
  for (const size_t free : {0u, 1u}) {
    const FewDescriptors few(free);
    const auto claim = find_protection({kServer}, family, directory_);
    EXPECT_TRUE(!claim || *claim) << "not found, with this many descriptors: " << free;
  }
}

}  // namespace
}  // namespace ppmr
