#include "fuse_target/keep/keeper.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "fuse_target/keep/keep_fixture.h"

namespace ppmr {
namespace {

// Functions on files that fail, or block, when the test requests it.
class FaultyFiles final : public KeptFiles {
 public:
  explicit FaultyFiles(const std::string& directory) : directory_(directory), files_(directory) {}

  Result<UniqueFd> open_kept_directory() override { return files_.open_kept_directory(); }
  Result<UniqueFd> create_kept(int32_t number) override {
    if (create_errno != 0) return failure(create_errno, "create: the test says so");
    return files_.create_kept(number);
  }
  Result<UniqueFd> publish_kept(int32_t number) override {
    if (before_publish) before_publish();
    return files_.publish_kept(number);
  }
  Result<UniqueFd> open_kept(int32_t number) override {
    if (damages) damage(number);
    return files_.open_kept(number);
  }
  Result<UniqueFd> remove_kept(int32_t number) override {
    if (remove_errno != 0) return failure(remove_errno, "remove: the test says so");
    return files_.remove_kept(number);
  }

  std::atomic<int> create_errno = 0;
  std::atomic<int> remove_errno = 0;
  std::atomic<bool> damages = false;  // changes the written bytes before the file is opened
  std::function<void()> before_publish;

 private:
  void damage(int32_t number) const {
    const std::string path = directory_ + "/" + kept_file_name(number, true);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(300'000);
    file.put('!');
    file.put('?');
  }

  const std::string directory_;
  KeptFilesIn files_;
};

class KeeperTest : public KeepTest {
 protected:
  void TearDown() override {
    keeper_.reset();
    store_.reset();
    KeepTest::TearDown();
  }

  // Starts a target with the directory. Its tree has the checkpoints that an earlier target has
  // kept there.
  void start(KeeperOptions options, size_t limit_bytes = 64 * kExtentBytes) {
    keeper_.reset();
    files_ = std::make_unique<FaultyFiles>(directory_);
    store_ = std::make_unique<TargetStore>(limit_bytes);
    keeper_ = std::make_unique<Keeper>(*files_, keys_, std::move(options), store_->tree,
                                       store_->memory());
    store_->give_back_from(keeper_.get());
    ASSERT_TRUE(keeper_->load());
  }
  void start() {
    start(options());
    keeper_->start();
  }
  Status remove(const std::string& name) {
    auto top = store_->tree.remove_checkpoint(name);
    if (!top) return failure(top.error());
    std::promise<Status> done;
    keeper_->removed(*top, [&](const Status& status) { done.set_value(status); });
    return done.get_future().get();
  }

  // The keeper checks once a second whether its files still exist.
  void wait_for_file(const std::string& name) {
    for (int i = 0; i < 6000 && !std::filesystem::exists(path_of(name)); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(std::filesystem::exists(path_of(name)));
  }

  std::unique_ptr<FaultyFiles> files_;
  std::unique_ptr<TargetStore> store_;
  std::unique_ptr<Keeper> keeper_;
};

TEST_F(KeeperTest, SealedCheckpointIsBackInTheNextTarget) {
  start();
  const std::string bytes = bytes_from(1, 3'000'000);
  const std::vector<SentFile> sent = {{"whole", {{0, bytes}}},
                                      {"sparse", {{5000, "one"}, {10'000'000, "two"}}, 20'000'000},
                                      {"empty", {}},
                                      {"hole", {}, 12'345}};
  store_->receive_and_seal("c", sent);
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  EXPECT_EQ(keeper_->report().checkpoints, 1u);
  EXPECT_EQ(files(), std::vector<std::string>({"00000001.kept"}));
  EXPECT_LT(std::filesystem::file_size(path_of("00000001.kept")), 4'000'000u) << "holes take space";

  start();
  const auto report = store_->tree.checkpoint("c");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->state, StoredState::kSealed);
  EXPECT_EQ(report->keep, KeepState::kKept);
  EXPECT_EQ(report->owner, "tls-psk one");
  EXPECT_EQ(report->source_name, "one");
  EXPECT_EQ(report->files, 4u);
  EXPECT_EQ(*store_->read("c", "whole"), bytes);
  std::string sparse(20'000'000, '\0');
  sparse.replace(5000, 3, "one");
  sparse.replace(10'000'000, 3, "two");
  EXPECT_TRUE(*store_->read("c", "sparse") == sparse);
  EXPECT_EQ(*store_->read("c", "empty"), "");
  EXPECT_EQ(*store_->read("c", "hole"), std::string(12'345, '\0'));
  const auto view = store_->tree.view(*store_->find("c"));
  EXPECT_EQ(view.attributes.mode, 0750u);
  EXPECT_EQ(view.attributes.uid, 11u);
  EXPECT_EQ(view.attributes.mtime_ns, 14);
  EXPECT_EQ(store_->find("c", "link")->link_target, "whole");
  EXPECT_TRUE(store_->find("c", "directory")->is_directory());
  EXPECT_EQ(store_->memory().counters().used_bytes, 0u) << "bytes stay on the disk until read";
}

TEST_F(KeeperTest, RestoredCheckpointKeepsItsNameAndItsOwner) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  start();
  wire::Claim claim;
  claim.node = 1000;
  claim.type = wire::NodeType::kDirectory;
  claim.name = "c";
  EXPECT_EQ(store_->tree.claim(TargetStore::kSession, claim).error().errno_value, EEXIST);
  EXPECT_EQ(store_->tree.remove_checkpoint("c", "tls-psk two").error().errno_value, EPERM);
  EXPECT_TRUE(store_->tree.remove_checkpoint("c", "tls-psk one"));
}

TEST_F(KeeperTest, RemovalIsOnTheDiskWhenItIsReported) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  ASSERT_TRUE(remove("c"));
  EXPECT_EQ(files(), std::vector<std::string>());
  start();
  EXPECT_FALSE(store_->tree.checkpoint("c"));
}

TEST_F(KeeperTest, RemovalAfterTheStopRunsOnTheThreadOfItsCaller) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  keeper_->stop();
  ASSERT_TRUE(remove("c"));
  EXPECT_EQ(files(), std::vector<std::string>());
}

TEST_F(KeeperTest, FailedRemovalIsReported) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  files_->remove_errno = EIO;
  EXPECT_EQ(remove("c").error().errno_value, EIO);
  EXPECT_EQ(keeper_->report().failures, 1u);
}

TEST_F(KeeperTest, CheckpointRemovedWhileItIsWrittenLeavesNoFile) {
  start();
  std::promise<void> publishing;
  std::promise<void> removed;
  files_->before_publish = [&] {
    publishing.set_value();
    removed.get_future().wait();
  };
  store_->receive_and_seal("c", {{"f", {{0, bytes_from(1, 3'000'000)}}}});
  publishing.get_future().wait();
  auto top = store_->tree.remove_checkpoint("c");
  ASSERT_TRUE(top);
  std::promise<Status> done;
  keeper_->removed(*top, [&](const Status& status) { done.set_value(status); });
  removed.set_value();
  EXPECT_TRUE(done.get_future().get());
  EXPECT_EQ(files(), std::vector<std::string>());
  EXPECT_EQ(keeper_->report().checkpoints, 0u);
}

TEST_F(KeeperTest, FileRemovedWhileItsCheckpointIsWrittenIsKeptWhole) {
  start();
  std::promise<void> publishing;
  std::promise<void> removed;
  files_->before_publish = [&] {
    publishing.set_value();
    removed.get_future().wait();
  };
  const std::string bytes = bytes_from(1, 3'000'000);
  store_->receive_and_seal("c", {{"f", {{0, bytes}}}});
  publishing.get_future().wait();
  ASSERT_TRUE(store_->tree.remove_entry(store_->find("c"), "f", /*directory_wanted=*/false));
  removed.set_value();
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  start();
  EXPECT_EQ(*store_->read("c", "f"), bytes) << "a checkpoint is kept as it was sealed";
}

TEST_F(KeeperTest, CheckpointOfAMigrationIsNotKept) {
  start();
  store_->receive("moving", {{"f", {{0, "x"}}}});
  store_->tree.mark_passing("moving", "tls-psk one");
  store_->seal();
  store_->receive_and_seal("mine", {{"f", {{0, "x"}}}});
  store_->tree.mark_passing("mine", "tls-psk two");  // not the owner of this checkpoint
  ASSERT_TRUE(store_->wait_until("mine", KeepState::kKept));
  EXPECT_EQ(store_->tree.checkpoint("moving")->keep, KeepState::kNo);
  EXPECT_TRUE(store_->tree.checkpoint("moving")->is_passing);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(KeeperTest, HalfWrittenFilesAreRemovedAtTheStart) {
  std::ofstream(path_of("00000005.part")) << "half";
  std::ofstream(path_of("notes.txt")) << "of the operator";
  std::ofstream(path_of("5.part")) << "of the operator";
  start();
  EXPECT_EQ(files(), std::vector<std::string>({"5.part", "notes.txt"}));
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  EXPECT_TRUE(std::filesystem::exists(path_of("00000006.kept")));
}

TEST_F(KeeperTest, HalfWrittenFileDoesNotTakeTheCompleteOneAlong) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  std::ofstream(path_of("00000001.part")) << "copied back by a person";
  start();
  EXPECT_TRUE(store_->tree.checkpoint("c"));
  EXPECT_EQ(files(), std::vector<std::string>({"00000001.kept", "00000001.part"}));
}

TEST_F(KeeperTest, UnusableFilesAreReportedAndTheOthersWork) {
  start();
  for (const char* name : {"a", "b", "c"}) {
    store_->receive_and_seal(name, {{"f", {{0, name}}}});
    ASSERT_TRUE(store_->wait_until(name, KeepState::kKept));
  }
  std::filesystem::resize_file(path_of("00000002.kept"), 10'000);
  std::filesystem::create_directory(path_of("00000009.kept"));
  start();
  EXPECT_TRUE(store_->tree.checkpoint("a"));
  EXPECT_FALSE(store_->tree.checkpoint("b"));
  EXPECT_TRUE(store_->tree.checkpoint("c"));
  const KeepReport report = keeper_->report();
  ASSERT_EQ(report.unreadable.size(), 2u);
  EXPECT_EQ(report.unreadable[0].file, "00000009.kept");
  EXPECT_EQ(report.unreadable[1].file, "00000002.kept");
  EXPECT_EQ(report.unreadable[1].name, "b");
  EXPECT_NE(report.unreadable[1].reason.find("torn"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(path_of("00000002.kept"))) << "an operator may still want it";
}

TEST_F(KeeperTest, LaterOfTwoFilesWithTheSameNameIsValid) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "old"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  std::filesystem::copy(path_of("00000001.kept"), path_of("00000000.kept"));
  start();
  EXPECT_EQ(keeper_->report().checkpoints, 1u);
  ASSERT_EQ(keeper_->report().unreadable.size(), 1u);
  EXPECT_EQ(keeper_->report().unreadable[0].file, "00000000.kept");
}

TEST_F(KeeperTest, FailureIsReportedAndTheKeeperTriesAgain) {
  start();
  files_->create_errno = ENOSPC;
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until_refused("c"));
  EXPECT_GE(keeper_->report().failures, 1u);
  EXPECT_EQ(keeper_->report().error, "create: the test says so");
  EXPECT_EQ(*store_->read("c", "f"), "x");
  files_->create_errno = 0;
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  EXPECT_EQ(keeper_->report().error, "");
}

TEST_F(KeeperTest, DirectoryThatVanishedAndCameBackHasTheCheckpointAgain) {
  start();
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  std::filesystem::remove_all(directory_);
  ASSERT_TRUE(store_->wait_until_refused("c"));
  std::filesystem::create_directory(directory_);
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  start();
  EXPECT_EQ(*store_->read("c", "f"), "x");
}

TEST_F(KeeperTest, CheckpointThatIsOnlyOnTheDiskSurvivesTheLossOfItsName) {
  start();
  const std::string bytes = bytes_from(1, 1'000'000);
  store_->receive_and_seal("c", {{"f", {{0, bytes}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  start();
  std::filesystem::remove(path_of("00000001.kept"));
  wait_for_file("00000002.kept");
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  EXPECT_EQ(*store_->read("c", "f"), bytes);
  start();
  EXPECT_EQ(*store_->read("c", "f"), bytes);
}

TEST_F(KeeperTest, MemoryOfAKeptCheckpointIsGivenBack) {
  start();
  const std::string bytes = bytes_from(1, 3 * kExtentBytes);
  store_->receive_and_seal("c", {{"f", {{0, bytes}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  ASSERT_GE(store_->memory().counters().used_bytes, 3 * kExtentBytes);
  // A planned read keeps its memory; later reads get the bytes from the disk.
  const auto node = store_->find("c", "f");
  ReadPlan plan;
  ASSERT_TRUE(node->file->read(0, 100, plan));
  EXPECT_EQ(keeper_->bytes_to_give_back(), bytes.size());
  ASSERT_TRUE(keeper_->give_back_oldest());
  EXPECT_EQ(std::memcmp(plan.buffers()[0].iov_base, bytes.data(), 100), 0);
  plan.clear();
  EXPECT_EQ(store_->memory().counters().used_bytes, 0u);
  EXPECT_TRUE(*store_->read("c", "f") == bytes);
  EXPECT_FALSE(keeper_->give_back_oldest());
  EXPECT_EQ(keeper_->report().given_back_bytes, bytes.size());
  EXPECT_EQ(keeper_->bytes_to_give_back(), 0u);
}

TEST_F(KeeperTest, HoldsMoreCheckpointsThanItsMemory) {
  start(options(), 8 * kExtentBytes);
  keeper_->start();
  for (int i = 0; i < 10; ++i) {
    const std::string name = "c" + std::to_string(i);
    store_->receive_and_seal(name, {{"f", {{0, bytes_from(uint32_t(i), 3 * kExtentBytes)}}}});
    ASSERT_TRUE(store_->wait_until(name, KeepState::kKept));
  }
  for (int i = 0; i < 10; ++i) {
    const auto bytes = store_->read("c" + std::to_string(i), "f");
    ASSERT_TRUE(bytes && *bytes == bytes_from(uint32_t(i), 3 * kExtentBytes)) << i;
  }
}

TEST_F(KeeperTest, DamagedBlockFailsOnlyReadsOfItsFile) {
  start();
  const std::string bytes = bytes_from(1, 1'000'000);
  store_->receive_and_seal("c", {{"f", {{0, bytes}}}, {"g", {{0, "good"}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  {
    std::fstream file(path_of("00000001.kept"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(300'000);
    file.put('!');
    file.put('?');
  }
  start();
  EXPECT_EQ(store_->read("c", "f").error().errno_value, EIO);
  EXPECT_EQ(*store_->read("c", "g"), "good");
}

TEST_F(KeeperTest, FileThatTheDiskHasDamagedIsNotReportedAsKept) {
  start();
  files_->damages = true;
  const std::string bytes = bytes_from(1, 1'000'000);
  store_->receive_and_seal("c", {{"f", {{0, bytes}}}});
  ASSERT_TRUE(store_->wait_until_refused("c"));
  EXPECT_NE(keeper_->report().error.find(".kept"), std::string::npos) << keeper_->report().error;
  EXPECT_EQ(keeper_->report().checkpoints, 0u);
  EXPECT_EQ(*store_->read("c", "f"), bytes) << "it is still in memory";
  files_->damages = false;
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  start();
  EXPECT_EQ(*store_->read("c", "f"), bytes);
  EXPECT_EQ(files().size(), 1u) << "a damaged file stays";
}

TEST_F(KeeperTest, StreamsContinueWhileTheDiskHangs) {
  start();
  std::promise<void> hangs;
  std::promise<void> goes_on;
  bool is_first = true;
  files_->before_publish = [&] {
    if (!std::exchange(is_first, false)) return;
    hangs.set_value();
    goes_on.get_future().wait();
  };
  const std::string bytes = bytes_from(1, 3'000'000);
  store_->receive_and_seal("c", {{"f", {{0, bytes}}}});
  hangs.get_future().wait();
  store_->receive_and_seal("d", {{"f", {{0, bytes_from(2, 3'000'000)}}}});
  EXPECT_EQ(*store_->read("d", "f"), bytes_from(2, 3'000'000));
  EXPECT_EQ(*store_->read("c", "f"), bytes);
  const KeepReport report = keeper_->report();
  EXPECT_EQ(report.writing, "c");
  EXPECT_GE(report.written_bytes, bytes.size());
  EXPECT_EQ(report.checkpoints, 0u);
  goes_on.set_value();
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  ASSERT_TRUE(store_->wait_until("d", KeepState::kKept));
}

TEST_F(KeeperTest, LoanOfAKeptFileNamesItsPlaceOnTheDisk) {
  start();
  const std::string bytes = bytes_from(1, 1'000'000);
  store_->receive_and_seal("c", {{"first", {{0, "x"}}}, {"second", {{0, bytes}}}});
  ASSERT_TRUE(store_->wait_until("c", KeepState::kKept));
  start();
  auto lent = store_->tree.lend("c", "second", 0);
  ASSERT_TRUE(lent) << lent.error().message;
  ASSERT_EQ(lent->loan.pieces.size(), 1u);
  const FileLoan::Piece& piece = lent->loan.pieces[0];
  EXPECT_EQ(piece.place, FileLoan::kOnDisk);
  EXPECT_EQ(piece.length, bytes.size());
  const uint64_t first = piece.place_offset / kKeptBlockBytes;
  const auto checksums = lent->loan.on_disk->copy_checksums(first, 1);
  ASSERT_TRUE(checksums);
  const auto file = lent->loan.on_disk->open_for_reading();
  std::vector<std::byte> block(kKeptBlockBytes);
  ASSERT_EQ(::pread(file->get(), block.data(), block.size(), off_t(piece.place_offset)),
            ssize_t(block.size()));
  BlockCipher::Key key;
  ASSERT_EQ(::pread(checksums->get(), key.data(), key.size(), 0), ssize_t(key.size()));
  ASSERT_TRUE(BlockCipher(key).decrypt(first, block, block.data()));
  EXPECT_EQ(std::memcmp(block.data(), bytes.data(), block.size()), 0);
}

TEST_F(KeeperTest, RetentionRemovesCheckpointsFromMountAndDisk) {
  KeeperOptions limited = options();
  limited.retention.count = 1;
  start(limited);
  keeper_->start();
  for (const char* name : {"db.1", "db.2", "web"}) {
    store_->receive_and_seal(name, {{"f", {{0, name}}}});
    ASSERT_TRUE(store_->wait_until(name, KeepState::kKept));
  }
  store_->tree.wait_for(
      "db.1", [](const auto& report) { return !report; }, std::chrono::seconds(60));
  EXPECT_FALSE(store_->tree.checkpoint("db.1"));
  EXPECT_TRUE(store_->tree.checkpoint("db.2"));
  EXPECT_TRUE(store_->tree.checkpoint("web"));
  keeper_->stop();  // after all removals
  EXPECT_EQ(files(), std::vector<std::string>({"00000002.kept", "00000003.kept"}));
}

TEST_F(KeeperTest, StopDropsTheCheckpointThatIsBeingWritten) {
  start();
  std::promise<void> publishing;
  files_->before_publish = [&] { publishing.set_value(); };
  store_->receive_and_seal("c", {{"f", {{0, "x"}}}});
  publishing.get_future().wait();
  keeper_->stop();
  for (const std::string& file : files()) EXPECT_TRUE(file.ends_with(".kept")) << file;
}

}  // namespace
}  // namespace ppmr
