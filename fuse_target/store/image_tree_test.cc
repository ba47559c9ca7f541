#include "fuse_target/store/image_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>

#include "mount/image_bundle.h"

namespace ppmr {
namespace {

using wire::NodeType;
constexpr SessionId kSession = 1;
constexpr SessionId kOther = 2;
constexpr uint64_t kTop = 10;

class ImageTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tree_.session_opened(kSession, "one", "tls-psk one");
    tree_.session_opened(kOther, "two", "tls-psk two");
  }
  ~ImageTreeTest() override { parking_.close(); }

  Status claim(const std::string& name, uint64_t node = kTop, SessionId session = kSession,
               NodeType type = NodeType::kDirectory) {
    wire::Claim message;
    message.node = node;
    message.type = type;
    message.attributes.mode = 0755;
    message.name = name;
    return tree_.claim(session, message);
  }
  Status make(uint64_t parent, uint64_t node, const std::string& name,
              NodeType type = NodeType::kFile, SessionId session = kSession) {
    wire::Make message;
    message.parent = parent;
    message.node = node;
    message.type = type;
    message.attributes.mode = 0644;
    message.name = name;
    if (type == NodeType::kSymlink) message.link_target = "elsewhere";
    return tree_.make(session, message);
  }
  Status arrive(uint64_t node, uint64_t offset, const std::string& bytes, uint64_t digest = 7,
                SessionId session = kSession) {
    const NodeKey key{session, node};
    const auto length = static_cast<uint32_t>(bytes.size());
    if (auto announced = tree_.announced(key, offset, length); !announced) return announced;
    return land(key, offset, bytes, digest);
  }
  Status land(NodeKey key, uint64_t offset, const std::string& bytes, uint64_t digest = 7) {
    auto landing = tree_.reserve(key, offset, static_cast<uint32_t>(bytes.size()));
    if (!landing) return failure(landing.error());
    const char* from = bytes.data();
    for (uint32_t i = 0; i < landing->piece_count; ++i) {
      std::memcpy(landing->pieces[i].data, from, landing->pieces[i].length);
      from += landing->pieces[i].length;
    }
    return tree_.land(*landing, digest);
  }
  Status close(uint64_t node, uint64_t size) {
    return tree_.closed(kSession, {node, size, {.mode = 0644}});
  }
  Status entry(wire::ManifestEntry message) { return tree_.manifest_entry(kSession, message); }
  Status seal(uint64_t count) { return tree_.seal(kSession, {1, kTop, count}); }
  StoredState state(const std::string& name) { return tree_.checkpoint(name)->state; }
  StoredNodePointer child(const StoredNodePointer& parent, const std::string& name) {
    return tree_.look_up(parent, name, /*keep=*/false);
  }
  StoredNodePointer root() { return tree_.find(kRootInode); }

  // Makes a checkpoint 'c' with one file of five bytes.
  void make_checkpoint() {
    ASSERT_TRUE(claim("c"));
    ASSERT_TRUE(make(kTop, 11, "file"));
    ASSERT_TRUE(arrive(11, 0, "hello"));
    ASSERT_TRUE(close(11, 5));
  }
  wire::ManifestEntry top_entry() { return {kTop, kTop, 0, NodeType::kDirectory, 0755, 0, 0, "c"}; }
  wire::ManifestEntry file_entry() { return {kTop, 11, kTop, NodeType::kFile, 0644, 5, 7, "file"}; }
  std::string seal_error(wire::ManifestEntry file, uint64_t count = 2) {
    EXPECT_TRUE(entry(top_entry()));
    EXPECT_TRUE(entry(file));
    const Status sealed = seal(count);
    return sealed ? "" : sealed.error().message;
  }

  std::unique_ptr<StoreMemory> memory_ =
      std::move(*StoreMemory::create({128 * kExtentBytes, 0, 0}, nullptr));
  const ImageStorage storage_{*memory_};
  ParkingLot parking_{[](pid_t) { return false; }};
  std::vector<std::string> tops_removed_;
  ImageTree tree_{storage_, parking_,
                  [this](const std::string& name) { tops_removed_.push_back(name); }};
};

TEST_F(ImageTreeTest, RefusesANewCheckpointWhoseNameIsInUse) {
  ASSERT_TRUE(claim("c"));
  EXPECT_EQ(claim("c", 10, kOther).error().errno_value, EEXIST);
  EXPECT_EQ(claim("c", 99).error().errno_value, EEXIST);
  EXPECT_TRUE(claim("d", 10, kOther));
}

TEST_F(ImageTreeTest, NamesCountAgainstTheMemoryLimit) {
  StoreCharge of_others = memory_->charge(112 * kExtentBytes);
  ASSERT_TRUE(claim("c"));
  uint64_t node = kTop;
  Status made;
  while (made && node < 100'000) {
    ++node;
    made = make(kTop, node, "file" + std::to_string(node));
  }
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().errno_value, ENOSPC);
  EXPECT_GT(memory_->counters().charged_bytes, 127 * kExtentBytes);
  EXPECT_EQ(state("c"), StoredState::kFailed);
  EXPECT_EQ(claim("d", 5, kOther).error().errno_value, ENOSPC);
  ASSERT_TRUE(tree_.remove_checkpoint("c"));
  of_others = {};
  EXPECT_EQ(memory_->counters().charged_bytes, 0);
  EXPECT_TRUE(claim("d", 5, kOther));
}

TEST_F(ImageTreeTest, NewCheckpointReplacesAFailedOneOfTheSameName) {
  make_checkpoint();
  tree_.session_ended(kSession, "gone");
  EXPECT_EQ(state("c"), StoredState::kFailed);
  auto foreign = claim("c", 10, kOther);
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().errno_value, EEXIST);
  EXPECT_THAT(foreign.error().message, testing::HasSubstr("remove it there"));
  constexpr SessionId kLater = 3;
  tree_.session_opened(kLater, "one", "tls-psk one");
  EXPECT_TRUE(claim("c", 10, kLater));
  EXPECT_EQ(state("c"), StoredState::kOpen);
  EXPECT_EQ(child(child(root(), "c"), "file"), nullptr);
}

TEST_F(ImageTreeTest, CheckpointIsRemovedForItsOwnerOnly) {
  make_checkpoint();
  EXPECT_EQ(tree_.checkpoint("c")->owner, "tls-psk one");
  tree_.session_ended(kSession, "gone");
  auto foreign = tree_.remove_checkpoint("c", "tls-psk two");
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().errno_value, EPERM);
  EXPECT_TRUE(tree_.checkpoint("c"));
  EXPECT_TRUE(tree_.remove_checkpoint("c", "tls-psk one"));
  EXPECT_FALSE(tree_.checkpoint("c"));
}

TEST_F(ImageTreeTest, BundleHasTheSmallFilesOfASealedCheckpoint) {
  make_checkpoint();
  ASSERT_TRUE(make(kTop, 12, "large"));
  ASSERT_TRUE(close(12, 20 << 20));  // the file ends in a hole
  EXPECT_EQ(tree_.bundle("c").error().errno_value, EBUSY);
  ASSERT_TRUE(entry(top_entry()));
  ASSERT_TRUE(entry(file_entry()));
  ASSERT_TRUE(entry({kTop, 12, kTop, NodeType::kFile, 0644, 20 << 20, 0, "large"}));
  ASSERT_TRUE(seal(3));
  auto bundled = tree_.bundle("c");
  ASSERT_TRUE(bundled) << bundled.error().message;
  EXPECT_EQ(bundled->inode, tree_.checkpoint("c")->inode);
  const auto bundle = ImageBundle::open(bundled->memfd);
  ASSERT_TRUE(bundle) << bundle.error().message;
  EXPECT_TRUE(bundle->is_flat());
  ASSERT_EQ(bundle->included().size(), 1u);
  EXPECT_EQ(std::memcmp(bundle->find("file")->data(), "hello", 5), 0);
  EXPECT_EQ(bundle->left_out().at("large"), uint64_t{20} << 20);
  EXPECT_EQ(tree_.bundle("d").error().errno_value, ENOENT);
}

TEST_F(ImageTreeTest, BundleReportsThatTheCheckpointHasMoreEntries) {
  make_checkpoint();
  ASSERT_TRUE(make(kTop, 12, "link", NodeType::kSymlink));
  ASSERT_TRUE(entry(top_entry()));
  ASSERT_TRUE(entry(file_entry()));
  ASSERT_TRUE(entry({kTop, 12, kTop, NodeType::kSymlink, 0644, 0, 0, "link"}));
  if (const Status sealed = seal(3); !sealed) GTEST_FAIL() << sealed.error().message;
  auto bundled = tree_.bundle("c");
  ASSERT_TRUE(bundled);
  const auto bundle = ImageBundle::open(bundled->memfd);
  ASSERT_TRUE(bundle);
  EXPECT_FALSE(bundle->is_flat());
  EXPECT_EQ(bundle->included().size(), 1u);
}

TEST_F(ImageTreeTest, RefusesInvalidNames) {
  for (const std::string& name : {std::string("a/b"), std::string("."), std::string(".."),
                                  std::string(), std::string("a\0b", 3), std::string(256, 'x')}) {
    EXPECT_FALSE(claim(name)) << name;
  }
  EXPECT_TRUE(claim(std::string(255, 'x')));
  EXPECT_FALSE(make(kTop, 11, "a/b"));
  EXPECT_EQ(state(std::string(255, 'x')), StoredState::kFailed);
}

TEST_F(ImageTreeTest, RefusesIdsOfOtherSessions) {
  make_checkpoint();
  EXPECT_EQ(make(kTop, 12, "x", NodeType::kFile, kOther).error().errno_value, ENOENT);
  EXPECT_EQ(arrive(11, 0, "x", 7, kOther).error().errno_value, ENOENT);
  EXPECT_EQ(tree_.truncate(kOther, {11, 0}).error().errno_value, ENOENT);
  EXPECT_EQ(state("c"), StoredState::kOpen) << "an error of another source fails no checkpoint";
}

TEST_F(ImageTreeTest, ZerosAnswerParkedReadsAndAreNotPartOfTheDigest) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(make(kTop, 11, "file"));
  const auto file = child(child(root(), "c"), "file");
  std::string bytes;
  ParkedRequest read;
  read.subject = file->file.get();
  read.checkpoint = file->checkpoint.get();
  read.retry = [&] {
    ReadPlan plan;
    if (*file->file->read(100, 10, plan) == ImageFile::Readiness::kWait) return false;
    EXPECT_TRUE(plan.make_ready());
    for (const iovec& buffer : plan.buffers()) {
      bytes.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
    }
    return true;
  };
  parking_.park(std::move(read));
  ASSERT_EQ(parking_.parked(), 1u);
  ASSERT_TRUE(tree_.zeros(kSession, {11, 5, 1000}));
  EXPECT_EQ(parking_.parked(), 0u);
  EXPECT_EQ(bytes, std::string(10, '\0'));
  ASSERT_TRUE(arrive(11, 0, "hello"));
  ASSERT_TRUE(close(11, 1005));
  auto entry = file_entry();
  entry.size_bytes = 1005;
  EXPECT_EQ(seal_error(entry), "");
}

TEST_F(ImageTreeTest, ZerosOfAnUnknownFileOrOutOfRangeAreErrors) {
  make_checkpoint();
  EXPECT_EQ(tree_.zeros(kSession, {99, 0, 1}).error().errno_value, ENOENT);
  EXPECT_EQ(tree_.zeros(kOther, {11, 0, 1}).error().errno_value, ENOENT);
  EXPECT_EQ(state("c"), StoredState::kOpen);
  EXPECT_EQ(tree_.zeros(kSession, {11, UINT64_MAX, 1}).error().errno_value, EINVAL);
  EXPECT_EQ(state("c"), StoredState::kFailed);
}

TEST_F(ImageTreeTest, ProtocolViolationFailsTheCheckpoint) {
  make_checkpoint();
  EXPECT_FALSE(make(11, 12, "below a file"));
  EXPECT_EQ(state("c"), StoredState::kFailed);
  ASSERT_TRUE(claim("d", 20));
  ASSERT_TRUE(make(20, 21, "x"));
  EXPECT_FALSE(make(20, 21, "the same id"));
  EXPECT_EQ(state("d"), StoredState::kFailed);
}

TEST_F(ImageTreeTest, ClosingTheInventoryImageCompletesTheCheckpoint) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(make(kTop, 11, "inventory.img"));
  EXPECT_EQ(state("c"), StoredState::kOpen);
  ASSERT_TRUE(close(11, 0));
  EXPECT_EQ(state("c"), StoredState::kComplete);
}

TEST_F(ImageTreeTest, InventoryImageInASubdirectoryDoesNotCompleteTheCheckpoint) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(make(kTop, 12, "d", NodeType::kDirectory));
  ASSERT_TRUE(make(12, 11, "inventory.img"));
  ASSERT_TRUE(close(11, 0));
  EXPECT_EQ(state("c"), StoredState::kOpen);
}

TEST_F(ImageTreeTest, SealSucceedsWhenSourceAndTargetAgreeOnEveryEntry) {
  make_checkpoint();
  EXPECT_EQ(seal_error(file_entry()), "");
  EXPECT_EQ(state("c"), StoredState::kSealed);
  EXPECT_TRUE(seal(2)) << "seal is idempotent";
  EXPECT_EQ(arrive(11, 0, "more").error().errno_value, EROFS);
  tree_.session_ended(kSession, "gone");
  EXPECT_EQ(state("c"), StoredState::kSealed);
}

TEST_F(ImageTreeTest, SealErrorNamesTheDifferenceBetweenSourceAndTarget) {
  make_checkpoint();
  auto wrong = file_entry();
  wrong.digest = 8;
  EXPECT_NE(seal_error(wrong).find("'file': its digest"), std::string::npos);
  wrong = file_entry();
  wrong.size_bytes = 6;
  EXPECT_NE(seal_error(wrong).find("'file': 5 bytes at the target, 6"), std::string::npos);
  wrong = file_entry();
  wrong.name = "elif";
  EXPECT_NE(seal_error(wrong).find("another name"), std::string::npos);
  wrong = file_entry();
  wrong.mode = 0600;
  EXPECT_NE(seal_error(wrong).find("another mode"), std::string::npos);
  wrong = file_entry();
  wrong.node = 12;
  EXPECT_NE(seal_error(wrong).find("missing at the target"), std::string::npos);
  EXPECT_NE(seal_error(top_entry()).find("listed twice"), std::string::npos);
  EXPECT_NE(seal_error(file_entry(), 3).find("2 names at the target, 3"), std::string::npos);
  EXPECT_EQ(state("c"), StoredState::kOpen);
  EXPECT_EQ(seal_error(file_entry()), "");
}

TEST_F(ImageTreeTest, SealDetectsAnExtraNameAtTheTarget) {
  make_checkpoint();
  ASSERT_TRUE(make(kTop, 12, "extra"));
  EXPECT_NE(seal_error(file_entry()).find("3 names at the target, 2"), std::string::npos);
}

TEST_F(ImageTreeTest, CloseSetsTheFinalAttributes) {
  make_checkpoint();
  const auto file = child(child(root(), "c"), "file");
  ASSERT_TRUE(tree_.closed(kSession, {11, 5, {.mode = 0600, .uid = 3, .mtime_ns = 8}}));
  const auto view = tree_.view(*file);
  EXPECT_EQ(view.attributes.mode, 0600u);
  EXPECT_EQ(view.attributes.uid, 3u);
  EXPECT_EQ(view.attributes.mtime_ns, 8);
}

// The source does not wait for the bytes before it sends the close.
TEST_F(ImageTreeTest, ReaderOfAClosedFileWaitsForBytesInFlight) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(make(kTop, 11, "file"));
  ASSERT_TRUE(tree_.announced({kSession, 11}, 0, 5));
  ASSERT_TRUE(close(11, 5));
  const auto file = child(child(root(), "c"), "file");
  ReadPlan plan;
  EXPECT_EQ(*file->file->read(0, 5, plan), ImageFile::Readiness::kWait);
  ASSERT_TRUE(land({kSession, 11}, 0, "hello"));
  EXPECT_EQ(*file->file->read(0, 5, plan), ImageFile::Readiness::kReady);
}

TEST_F(ImageTreeTest, RefusesToSealWhileFilesAreOpenOrChunksAreInFlight) {
  make_checkpoint();
  ASSERT_TRUE(tree_.announced({kSession, 11}, 0, 5));
  EXPECT_NE(seal_error(file_entry()).find("in flight"), std::string::npos);
  auto landing = tree_.reserve({kSession, 11}, 0, 5);
  ASSERT_TRUE(landing);
  ASSERT_TRUE(tree_.land(*landing, 0));
  EXPECT_NE(seal_error(file_entry()).find("still open"), std::string::npos);
}

TEST_F(ImageTreeTest, RepeatedManifestEntriesDoNotUseMoreMemory) {
  constexpr int kEntries = 100'000;
  constexpr size_t kGrowthMaxBytes = size_t{64} << 10;
  make_checkpoint();
  const auto allocated_bytes = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = allocated_bytes();
  for (int i = 0; i < kEntries; ++i) ASSERT_TRUE(entry(file_entry()));
  EXPECT_LE(allocated_bytes(), before + kGrowthMaxBytes);
  EXPECT_FALSE(seal(kEntries));
}

TEST_F(ImageTreeTest, EndOfTheSessionFailsAllItsUnsealedCheckpoints) {
  make_checkpoint();
  ASSERT_TRUE(claim("complete", 20));
  ASSERT_TRUE(make(20, 21, "inventory.img"));
  ASSERT_TRUE(close(21, 0));
  ASSERT_TRUE(claim("other", 10, kOther));
  tree_.session_ended(kSession, "killed");
  EXPECT_EQ(state("c"), StoredState::kFailed);
  EXPECT_EQ(state("complete"), StoredState::kFailed);
  EXPECT_EQ(state("other"), StoredState::kOpen);
  EXPECT_EQ(tree_.checkpoint("c")->error, "killed");
}

TEST_F(ImageTreeTest, ChunkThatArrivesAfterTheSessionEndedIsRefusedAndFreed) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(make(kTop, 11, "file"));
  ASSERT_TRUE(tree_.announced({kSession, 11}, 0, 100));
  auto landing = tree_.reserve({kSession, 11}, 0, 100);
  ASSERT_TRUE(landing);
  tree_.session_ended(kSession, "killed");
  EXPECT_FALSE(tree_.land(*landing, 1));
  EXPECT_EQ(memory_->counters().used_bytes, 0u);
}

TEST_F(ImageTreeTest, RenameCanReplaceAFileButCannotCrossCheckpoints) {
  make_checkpoint();
  ASSERT_TRUE(make(kTop, 12, "other"));
  ASSERT_TRUE(tree_.rename(kSession, {0, kTop, kTop, "file", "other"}));
  EXPECT_EQ(child(child(root(), "c"), "file"), nullptr);
  EXPECT_EQ(child(child(root(), "c"), "other")->key.node, 11u);
  ASSERT_TRUE(claim("d", 20));
  EXPECT_EQ(tree_.rename(kSession, {5, kTop, 20, "other", "x"}).error().errno_value, EXDEV);
}

TEST_F(ImageTreeTest, RefusesToMoveADirectoryIntoItself) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(make(kTop, 11, "a", NodeType::kDirectory));
  ASSERT_TRUE(make(11, 12, "b", NodeType::kDirectory));
  EXPECT_EQ(tree_.rename(kSession, {0, kTop, 12, "a", "a"}).error().errno_value, EINVAL);
}

TEST_F(ImageTreeTest, RefusesToRenameACheckpointToANameInUseByAnotherSource) {
  ASSERT_TRUE(claim("c"));
  ASSERT_TRUE(claim("theirs", 10, kOther));
  EXPECT_EQ(tree_.rename(kSession, {5, 0, 0, "c", "theirs"}).error().errno_value, EEXIST);
  EXPECT_EQ(tree_.rename(kSession, {6, 0, 0, "theirs", "mine"}).error().errno_value, ENOENT);
  EXPECT_TRUE(tree_.rename(kSession, {7, 0, 0, "c", "d"}));
  EXPECT_EQ(state("d"), StoredState::kOpen);
}

TEST_F(ImageTreeTest, TargetCannotRemoveFilesOfACheckpointThatIsStillOpen) {
  make_checkpoint();
  const auto top = child(root(), "c");
  EXPECT_EQ(tree_.remove_entry(top, "file", false).error().errno_value, EBUSY);
  EXPECT_EQ(tree_.remove_checkpoint("c").error().errno_value, EBUSY);
  ASSERT_EQ(seal_error(file_entry()), "");
  EXPECT_EQ(tree_.remove_entry(root(), "c", true).error().errno_value, ENOTEMPTY);
  EXPECT_EQ(tree_.remove_entry(top, "file", true).error().errno_value, ENOTDIR);
  auto removed = tree_.remove_entry(top, "file", false);
  ASSERT_TRUE(removed);
  EXPECT_FALSE(*removed);
  EXPECT_EQ(memory_->counters().used_bytes, 0u);
  removed = tree_.remove_entry(root(), "c", true);
  ASSERT_TRUE(removed && *removed);
  EXPECT_EQ((**removed).node, kTop);
}

TEST_F(ImageTreeTest, ReportsRemovedCheckpointsThatTheKernelHasNotRemoved) {
  using Names = std::vector<std::string>;
  make_checkpoint();
  ASSERT_TRUE(tree_.remove(kSession, {kTop, "file"}));
  EXPECT_EQ(tops_removed_, Names()) << "the file is in a checkpoint";
  ASSERT_TRUE(tree_.remove(kSession, {0, "c"}));
  EXPECT_EQ(tops_removed_, Names({"c"}));
  ASSERT_TRUE(claim("d", 20));
  ASSERT_TRUE(tree_.remove_kept({kSession, 20}));
  EXPECT_EQ(tops_removed_, Names({"c", "d"}));
  ASSERT_TRUE(claim("e", 30));
  tree_.session_ended(kSession, "test");
  ASSERT_TRUE(tree_.remove_checkpoint("e"));
  EXPECT_EQ(tops_removed_, Names({"c", "d", "e"}));
}

TEST_F(ImageTreeTest, OpenFileKeepsItsBytesWhenRemoved) {
  make_checkpoint();
  ASSERT_EQ(seal_error(file_entry()), "");
  const auto file = child(child(root(), "c"), "file");
  ASSERT_TRUE(tree_.open_file(*file));
  ASSERT_TRUE(tree_.remove_checkpoint("c"));
  ReadPlan plan;
  EXPECT_TRUE(file->file->read(0, 5, plan));
  EXPECT_EQ(plan.size_bytes(), 5u);
  EXPECT_EQ(std::memcmp(plan.buffers()[0].iov_base, "hello", 5), 0);
  plan.clear();
  tree_.release_file(*file);
  EXPECT_EQ(memory_->counters().used_bytes, 0u) << "the inode may stay, the bytes may not";
  EXPECT_EQ(tree_.open_file(*file).error().errno_value, ESTALE);
}

TEST_F(ImageTreeTest, LendsAFileOfASealedCheckpoint) {
  make_checkpoint();
  const auto early = tree_.lend("c", "file", 0);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().errno_value, EBUSY);
  EXPECT_NE(early.error().message.find("not sealed"), std::string::npos);
  EXPECT_TRUE(tree_.lend("c", "file", 0, /*arrived_only=*/true));
  ASSERT_EQ(seal_error(file_entry()), "");
  EXPECT_EQ(tree_.lend("d", "file", 0).error().errno_value, ENOENT);
  EXPECT_EQ(tree_.lend("c", "other", 0).error().errno_value, ENOENT);
  EXPECT_EQ(tree_.lend("c", "../c/file", 0).error().errno_value, ENOENT);
  EXPECT_EQ(tree_.lend("c", "file/x", 0).error().errno_value, ENOENT);
  EXPECT_EQ(tree_.lend("c", "", 0).error().errno_value, EISDIR);
  auto lent = tree_.lend("c", "file", 0);
  ASSERT_TRUE(lent) << lent.error().message;
  EXPECT_EQ(lent->loan.size_bytes, 5u);
  ASSERT_TRUE(tree_.remove_checkpoint("c"));
  EXPECT_EQ(memory_->counters().used_bytes, kExtentBytes) << "the removal freed lent bytes";
  EXPECT_EQ(std::memcmp(lent->loan.blocks.at(0).bytes().data(), "hello", 5), 0);
  lent->loan = {};
  EXPECT_EQ(memory_->counters().used_bytes, 0u);
}

TEST_F(ImageTreeTest, ForgetFreesTheMemoryOfARemovedFile) {
  make_checkpoint();
  ASSERT_TRUE(tree_.remove(kSession, {kTop, "file"}));
  EXPECT_TRUE(arrive(11, 5, "its writer goes on"));
  ASSERT_TRUE(tree_.forget(kSession, {11}));
  EXPECT_EQ(memory_->counters().used_bytes, 0u);
  EXPECT_EQ(arrive(11, 0, "x").error().errno_value, ENOENT);
}

TEST_F(ImageTreeTest, FailedCheckpointFreesItsMemoryAndKeepsItsNames) {
  make_checkpoint();
  tree_.abandon_announced({kSession, 11}, 0, 1, Error{ENOSPC, "full"});
  EXPECT_EQ(state("c"), StoredState::kFailed);
  EXPECT_EQ(memory_->counters().used_bytes, 0u);
  const auto file = child(child(root(), "c"), "file");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(tree_.view(*file).size_bytes, 5u);
  EXPECT_FALSE(tree_.read({kSession, 11}, 0, {}));
}

TEST_F(ImageTreeTest, SourceReadsBackItsBytes) {
  make_checkpoint();
  std::array<std::byte, 10> bytes{};
  auto count = tree_.read({kSession, 11}, 1, bytes);
  ASSERT_TRUE(count);
  EXPECT_EQ(*count, 4u);
  EXPECT_EQ(std::memcmp(bytes.data(), "ello", 4), 0);
}

TEST_F(ImageTreeTest, RemovesACheckpointWithVeryDeepDirectories) {
  ASSERT_TRUE(claim("c"));
  uint64_t parent = kTop;
  for (uint64_t i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(make(parent, 100 + i, "d", NodeType::kDirectory));
    parent = 100 + i;
  }
  tree_.session_ended(kSession, "gone");
  EXPECT_TRUE(tree_.remove_checkpoint("c"));
}

TEST_F(ImageTreeTest, RetriesParkedReadsWhenBytesArriveAndWhenTheCheckpointFails) {
  make_checkpoint();
  const auto file = child(child(root(), "c"), "file");
  std::string log;
  ParkedRequest request;
  request.id = &log;
  request.subject = file->file.get();
  request.checkpoint = file->checkpoint.get();
  request.retry = [&] {
    if (file->checkpoint->failed()) log += "failed ";
    if (file->file->facts().size_bytes > 5) log += "more ";
    return file->checkpoint->failed();
  };
  request.refuse = [](int) {};
  parking_.park(std::move(request));
  ASSERT_TRUE(arrive(11, 5, "x"));
  EXPECT_EQ(log, "more ");
  tree_.session_ended(kSession, "gone");
  EXPECT_EQ(log, "more failed more ");
  EXPECT_EQ(parking_.parked(), 0u);
}

TEST_F(ImageTreeTest, WaitsForACheckpointThatDoesNotExistYet) {
  std::thread source([&] {
    make_checkpoint();
    EXPECT_EQ(seal_error(file_entry()), "");
  });
  const auto report = tree_.wait_for(
      "c", [](const auto& seen) { return seen && seen->state == StoredState::kSealed; },
      std::chrono::seconds(10));
  source.join();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->state, StoredState::kSealed);
  EXPECT_EQ(report->files, 1u);
}

TEST_F(ImageTreeTest, DestroyingTheTreeFreesTheBytesOfOpenFiles) {
  std::optional<ImageTree> tree(std::in_place, storage_, parking_);
  tree->session_opened(kSession, "one", "tls-psk one");
  wire::Claim message;
  message.node = kTop;
  message.type = NodeType::kFile;
  message.name = "stream";
  ASSERT_TRUE(tree->claim(kSession, message));
  const NodeKey key{kSession, kTop};
  ASSERT_TRUE(tree->announced(key, 0, 5));
  auto landing = tree->reserve(key, 0, 5);
  ASSERT_TRUE(landing);
  ASSERT_TRUE(tree->land(*landing, 7));
  const auto file = tree->look_up(tree->find(kRootInode), "stream", /*keep=*/true);
  ASSERT_TRUE(tree->open_file(*file));
  // Before the file is released: libfuse does not release open files when the mount ends.
  tree.reset();
  EXPECT_EQ(memory_->counters().used_bytes, 0u);
}

}  // namespace
}  // namespace ppmr
