#include "migration/source/protection_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

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
  Protections() {
    std::string path = testing::TempDir() + "/claims-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  ~Protections() override { std::filesystem::remove_all(directory_); }

  std::optional<ProtectionClaim> find(const ProcessIdentity& wanted) const {
    return find_protection({wanted}, family, directory_);
  }

  std::string directory_;
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
  EXPECT_FALSE(find_protection({kServer}, family, directory_ + "/missing"));
}

}  // namespace
}  // namespace ppmr
