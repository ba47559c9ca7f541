#include "jobs/agent/suspension_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/disk_faults.h"
#include "base/test_directory.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {
namespace {

constexpr const char* kSuspension = "0123456789abcdef";

class SuspensionFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to take the rights of a user";
    options_ = {.program = "ppmr", .key_file = top_ + "/key", .work = top_};
    ASSERT_TRUE(create_key_file(options_.key_file));
    std::filesystem::create_symlink("loop", top_ + "/loop");
  }
  SuspensionFiles files_in(const std::string& directory) const {
    return {options_, {.uid = geteuid(), .gid = getegid()}, directory};
  }

  const TestDirectory directory_;
  const std::string top_ = directory_.path();
  SuspensionOptions options_;
};

TEST_F(SuspensionFilesTest, OnlyOneCallerClaimsASuspension) {
  const SuspensionFiles files = files_in(top_);
  ASSERT_TRUE(files.claim(kSuspension, "by one", false));
  const Status claimed = files.claim(kSuspension, "by another", false);
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().errno_value, EALREADY);
  EXPECT_THAT(claimed.error().message, testing::HasSubstr("by one"));
  EXPECT_TRUE(files.claim(kSuspension, "by another", true));
}

// If the claim stayed, no later call could resume the job, and a later suspension could replace it.
TEST_F(SuspensionFilesTest, ClaimThatCannotBeWrittenIsRemoved) {
  const SuspensionFiles files = files_in(top_);
  for (const rlim_t bytes : {3, 0}) {
    {
      const FileSizeLimit limit(bytes);
      const Status claimed = files.claim(kSuspension, "by one", false);
      ASSERT_FALSE(claimed);
      EXPECT_EQ(claimed.error().errno_value, EFBIG);
    }
    EXPECT_TRUE(files.claim(kSuspension, "by another", false));
    files.give_back(kSuspension);
  }
}

TEST_F(SuspensionFilesTest, SaysThatThereIsNoSuspendedJob) {
  EXPECT_TRUE(files_in(top_).prepare());
  const auto read = files_in(top_).read();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, ENOENT);
  EXPECT_THAT(read.error().message, testing::HasSubstr("there is no suspended job"));
}

// The directory may have an earlier job, which a new suspension would replace.
TEST_F(SuspensionFilesTest, DirectoryThatCannotBeReadIsAnErrorAndDoesNotCountAsEmpty) {
  const Status prepared = files_in(top_ + "/loop").prepare();
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().errno_value, ELOOP);
  const auto read = files_in(top_ + "/loop").read();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, ELOOP);
  EXPECT_THAT(read.error().message, testing::Not(testing::HasSubstr("no suspended job")));
}

}  // namespace
}  // namespace ppmr
