// Tests that the tree answers while files in the spill directory are being closed.
#include <gtest/gtest.h>

#include <future>
#include <list>

#include "fuse_target/store/image_tree.h"

namespace ppmr {
namespace {

using wire::NodeType;
constexpr SessionId kSession = 1;
constexpr SessionId kOther = 2;
constexpr uint64_t kTop = 10;

// Calls a function when one of its files is closed.
class WatchedSpillDirectory : public SpillDirectory {
 public:
  WatchedSpillDirectory(std::string path, std::function<void()> closing)
      : SpillDirectory(
            path, [path] { return create_unnamed_file(path); },
            std::move(create_unnamed_file(path)->file), UINT64_MAX),
        closing_(std::move(closing)) {}
  Result<std::shared_ptr<SpillFile>> create_file() const override {
    auto file = SpillDirectory::create_file();
    if (!file) return file;
    return std::shared_ptr<SpillFile>(file->get(),
                                      [this, owner = *file](SpillFile*) { closing_(); });
  }

 private:
  const std::function<void()> closing_;
};

// Closing a large file takes seconds, because the kernel frees its blocks.
class SpillingImageTreeTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kFile = 11;
  static constexpr uint64_t kFileBytes = kLimitMinBytes + 2 * kExtentBytes;
  static constexpr uint32_t kChunkBytes = uint32_t{1} << 20;

  void SetUp() override {
    tree_.session_opened(kSession, "one", "tls-psk one");
    ASSERT_TRUE(claim(kSession));
    make_spilled_file(kFile, "file");
  }
  ~SpillingImageTreeTest() override { parking_.close(); }

  Status claim(SessionId session) {
    wire::Claim claim;
    claim.node = kTop;
    claim.type = NodeType::kDirectory;
    claim.name = "c";
    return tree_.claim(session, claim);
  }
  void make_spilled_file(uint64_t node, const std::string& name) {
    wire::Make make;
    make.parent = kTop;
    make.node = node;
    make.type = NodeType::kFile;
    make.name = name;
    ASSERT_TRUE(tree_.make(kSession, make));
    const NodeKey key{kSession, node};
    for (uint64_t offset = 0; offset < kFileBytes; offset += kChunkBytes) {
      ASSERT_TRUE(tree_.announced(key, offset, kChunkBytes));
      auto landing = tree_.reserve(key, offset, kChunkBytes);
      ASSERT_TRUE(landing);
      ASSERT_TRUE(tree_.land(*landing, 1));
    }
    ASSERT_TRUE(tree_.closed(kSession, {node, kFileBytes}));
    ASSERT_GT(spill_.spilled_bytes(), 0u);
  }
  void seal() {
    ASSERT_TRUE(
        tree_.manifest_entry(kSession, {kTop, kTop, 0, NodeType::kDirectory, 0, 0, 0, "c"}));
    ASSERT_TRUE(tree_.manifest_entry(kSession, {kTop, kFile, kTop, NodeType::kFile, 0, kFileBytes,
                                                kFileBytes / kChunkBytes, "file"}));
    ASSERT_TRUE(tree_.seal(kSession, {1, kTop, 2}));
  }
  // Returns whether another thread can use the tree now.
  bool tree_responds() {
    probes_.push_back(
        std::async(std::launch::async, [this] { return tree_.checkpoints().size(); }));
    return probes_.back().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  }

  int closed_while_unlocked_ = 0;
  int closed_while_locked_ = 0;
  std::list<std::future<size_t>> probes_;
  WatchedSpillDirectory spill_{
      ::testing::TempDir(),
      [this] { ++(tree_responds() ? closed_while_unlocked_ : closed_while_locked_); }};
  std::unique_ptr<StoreMemory> memory_ = std::move(
      *StoreMemory::create({kLimitMinBytes + 2 * kExtentBytes, 0, 2 * kExtentBytes}, nullptr));
  const ImageStorage storage_{*memory_, &spill_};
  ParkingLot parking_{[](pid_t) { return false; }};
  ImageTree tree_{storage_, parking_};
};

TEST_F(SpillingImageTreeTest, CheckpointFailureClosesSpillFilesWithoutHoldingTheLock) {
  tree_.session_ended(kSession, "gone");
  EXPECT_EQ(closed_while_locked_, 0);
  EXPECT_EQ(closed_while_unlocked_, 1);
}

TEST_F(SpillingImageTreeTest, RemovalOfACheckpointClosesSpillFilesWithoutHoldingTheLock) {
  seal();
  ASSERT_TRUE(tree_.remove_checkpoint("c"));
  EXPECT_EQ(closed_while_locked_, 0);
  EXPECT_EQ(closed_while_unlocked_, 1);
}

TEST_F(SpillingImageTreeTest, RemovalOfAFileClosesSpillFilesWithoutHoldingTheLock) {
  seal();
  const auto top = tree_.look_up(tree_.find(kRootInode), "c", /*keep=*/false);
  ASSERT_TRUE(tree_.remove_entry(top, "file", /*directory_wanted=*/false));
  EXPECT_EQ(closed_while_locked_, 0);
  EXPECT_EQ(closed_while_unlocked_, 1);
}

TEST_F(SpillingImageTreeTest, LastCloseOfARemovedFileClosesSpillFilesWithoutHoldingTheLock) {
  seal();
  const auto top = tree_.look_up(tree_.find(kRootInode), "c", /*keep=*/false);
  const auto file = tree_.look_up(top, "file", /*keep=*/false);
  ASSERT_TRUE(tree_.open_file(*file));
  ASSERT_TRUE(tree_.remove_checkpoint("c"));
  EXPECT_EQ(closed_while_unlocked_, 0);
  tree_.release_file(*file);
  EXPECT_EQ(closed_while_locked_, 0);
  EXPECT_EQ(closed_while_unlocked_, 1);
}

TEST_F(SpillingImageTreeTest, ForgetMessageClosesSpillFilesWithoutHoldingTheLock) {
  ASSERT_TRUE(tree_.remove(kSession, {kTop, "file"}));
  EXPECT_EQ(closed_while_unlocked_, 0);
  ASSERT_TRUE(tree_.forget(kSession, {kFile}));
  EXPECT_EQ(closed_while_locked_, 0);
  EXPECT_EQ(closed_while_unlocked_, 1);
}

TEST_F(SpillingImageTreeTest, ReplacingAFailedCheckpointClosesSpillFilesWithoutHoldingTheLock) {
  tree_.session_ended(kSession, "gone");
  tree_.session_opened(kOther, "one", "tls-psk one");
  EXPECT_TRUE(claim(kOther));
  EXPECT_EQ(closed_while_locked_, 0);
  EXPECT_EQ(closed_while_unlocked_, 1);
}

}  // namespace
}  // namespace ppmr
