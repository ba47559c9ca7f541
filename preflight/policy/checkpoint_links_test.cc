#include "preflight/policy/checkpoint_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/disk_faults.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

class CheckpointLinks : public testing::Test {
 protected:
  CheckpointLinks() {
    fs::remove_all(checkpoint_);
    fs::create_directories(checkpoint_ / "1");
    fs::create_directories(checkpoint_ / "2");
    std::ofstream(checkpoint_ / "2/core-1.img") << "x";
  }
  ~CheckpointLinks() override { fs::remove_all(checkpoint_); }

  void link(const std::string& to, const std::string& name) {
    fs::create_symlink(to, checkpoint_ / name);
  }
  std::string refusal() const {
    const Status status = refuse_links(checkpoint_);
    return status ? "" : status.error().message;
  }

  const fs::path checkpoint_ = fs::path(testing::TempDir()) / "checkpoint_links";
};

TEST_F(CheckpointLinks, AcceptsTheRoundsOfAPreCopy) {
  link("../1", "2/parent");
  EXPECT_EQ(refusal(), "");
}

TEST_F(CheckpointLinks, RefusesAnImageThatIsALink) {
  link("/etc/shadow", "2/pages-1.img");
  EXPECT_THAT(refusal(), testing::HasSubstr("\"2/pages-1.img\""));
}

TEST_F(CheckpointLinks, RefusesALinkToTheSameCheckpoint) {
  link("core-1.img", "2/core-2.img");
  EXPECT_THAT(refusal(), testing::HasSubstr("core-2.img"));
}

TEST_F(CheckpointLinks, RefusesAParentThatIsNotASiblingDirectory) {
  for (const char* to : {"/etc", "../../1", "..", "../..", "../.", "../", "1", "../1/../.."}) {
    link(to, "2/parent");
    EXPECT_THAT(refusal(), testing::HasSubstr("2/parent")) << to;
    fs::remove(checkpoint_ / "2/parent");
  }
}

TEST_F(CheckpointLinks, RefusesAParentAtTheTop) {
  link("../other", "parent");
  EXPECT_THAT(refusal(), testing::HasSubstr("\"parent\""));
}

TEST_F(CheckpointLinks, RefusesALinkedDirectory) {
  link("2", "3");
  EXPECT_THAT(refusal(), testing::HasSubstr("\"3\""));
}

TEST_F(CheckpointLinks, EscapesTheNameInTheMessage) {
  link("x", "2/a\nb\x1b[2J");
  EXPECT_THAT(refusal(), testing::HasSubstr("a\\nb\\u001b[2J"));
}

TEST_F(CheckpointLinks, RefusesAnEntryThatCannotBeChecked) {
  const ReaddirFault fault({"gone"}, 0);
  EXPECT_THAT(refusal(), testing::HasSubstr("No such file"));
}

}  // namespace
}  // namespace ppmr
