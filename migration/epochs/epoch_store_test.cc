#include "migration/epochs/epoch_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/whole_file.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPage = kPageBytes;

// Pages of one process, each filled with one letter.
class EpochStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: mounts a tmpfs";
    fs::create_directories(images_);
    auto store = EpochStore::open(directory_);
    ASSERT_TRUE(store) << store.error().message;
    store_.emplace(std::move(*store));
  }
  void TearDown() override {
    store_.reset();
    umount2(directory_.c_str(), MNT_DETACH);
    fs::remove_all(directory_);
    fs::remove_all(images_);
  }

  EpochState state(uint64_t number, char run = 'a') const {
    EpochState state;
    state.name = "db";
    state.peer = "tls-psk one";
    state.tree = {"node", "boot", 17, 4711, "redis"};
    state.run = std::string(32, run);
    state.newest.number = number;
    return state;
  }

  // Seals an epoch whose pages are `letters` at `offset` of the memory file, and whose index says
  // that the process has its pages at `places`. A letter "0" is a page of zeros.
  Status seal(const EpochState& next, uint64_t offset, const std::string& letters,
              const std::vector<uint64_t>& places) {
    PageIndex index;
    index.tasks.push_back({17, 17, {}, 0});
    uint64_t address = kPage;
    for (const uint64_t place : places) {
      index.tasks[0].ranges.push_back({address, address + kPage, place * kPage});
      address += 2 * kPage;
    }
    index.memory_bytes = offset * kPage + letters.size() * kPage;
    EXPECT_TRUE(write_page_index(images_ + "/" + kPageIndexFile, index));
    auto locked = store_->lock("db");
    EXPECT_TRUE(locked);
    const auto read = [&](uint64_t at, std::span<std::byte> scratch) {
      const char letter = letters[at / kPage];
      std::memset(scratch.data(), letter == '0' ? 0 : letter, kPage);
      if (letter == '!') return Result<std::span<const std::byte>>(failure(EIO, "no such page"));
      return Result<std::span<const std::byte>>(scratch.first(kPage));
    };
    return seal_epoch(*locked, next,
                      {.images = images_,
                       .memory_offset = offset * kPage,
                       .memory_bytes = letters.size() * kPage,
                       .read = read});
  }

  std::string epoch_path(uint64_t number) const {
    return directory_ + "/db/epoch-" + std::to_string(number);
  }
  // Returns the letters of an epoch's pages, in the order of their addresses. `number`: 0 means the
  // newest epoch.
  std::string kept(uint64_t number = 0) const {
    const auto now = store_->read("db");
    if (!now) return now.error().message;
    if (number == 0) number = now->newest.number;
    const auto index = read_page_index(epoch_path(number) + "/images/" + kPageIndexFile);
    const auto memory = read_whole_file(epoch_path(number) + "/memory");
    if (!index || !memory) return "unreadable";
    std::string letters;
    for (const PageRange& range : index->tasks[0].ranges) {
      const char letter = (*memory)[range.offset];
      letters += letter == 0 ? '0' : letter;
    }
    return letters;
  }
  uint64_t memory_pages(uint64_t number) const {
    struct stat status {};
    EXPECT_EQ(stat((epoch_path(number) + "/memory").c_str(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512 / kPage;
  }

  const std::string images_ = testing::TempDir() + "images-" + std::to_string(getpid());
  const std::string directory_ = testing::TempDir() + "epochs-" + std::to_string(getpid());
  std::optional<EpochStore> store_;
};

TEST_F(EpochStoreTest, CopyStaysWhatItIsWhenLaterEpochsArrive) {
  ASSERT_TRUE(seal(state(1), 0, "abc", {0, 1, 2}));
  const SealedEpoch epoch = store_->read("db")->newest;
  {
    auto from = store_->lock("db");
    auto to = store_->lock(copy_name("db"));
    const EpochState copy = copy_of(from->state(), epoch, std::string(32, 'c'));
    ASSERT_TRUE(copy_epoch(*from, *to, copy));
  }
  ASSERT_TRUE(seal(state(2), 3, "X", {0, 3, 2}));
  EXPECT_EQ(kept(), "aXc");
  const auto copy = store_->read(copy_name("db"));
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->newest.number, 1u);
  const std::string path = directory_ + "/" + copy_name("db") + "/epoch-1";
  EXPECT_TRUE(read_page_index(path + "/images/" + kPageIndexFile));
  const auto memory = read_whole_file(path + "/memory");
  ASSERT_TRUE(memory);
  EXPECT_EQ((*memory)[0], 'a');
  EXPECT_EQ((*memory)[kPage], 'b') << "the later epoch has given this page back";
  EXPECT_EQ((*memory)[2 * kPage], 'c');
}

TEST_F(EpochStoreTest, TryLockFailsWhileTheLockIsHeld) {
  ASSERT_TRUE(seal(state(1), 0, "a", {0}));
  {
    const auto held = store_->lock("db");
    EXPECT_EQ(store_->try_lock("db").error().errno_value, EWOULDBLOCK);
  }
  const auto free = store_->try_lock("db");
  ASSERT_TRUE(free);
  EXPECT_TRUE(free->exists());
}

TEST_F(EpochStoreTest, CopyWithoutAStateIsListed) {
  ASSERT_TRUE(seal(state(1), 0, "a", {0}));
  EXPECT_TRUE(store_->copies().empty());
  ASSERT_TRUE(store_->lock(copy_name("db"))) << "its command is killed while it copies";
  EXPECT_EQ(store_->copies(), std::vector<std::string>{"db@copy"});
  EXPECT_EQ(store_->list()->size(), 1u);
}

TEST_F(EpochStoreTest, OpeningAnExistingStoreMountsNothing) {
  ASSERT_TRUE(seal(state(1), 0, "a", {0}));
  const auto there = EpochStore::open_existing(directory_);
  ASSERT_TRUE(there && *there);
  EXPECT_EQ((*there)->list()->size(), 1u);
  ASSERT_EQ(umount2(directory_.c_str(), MNT_DETACH), 0);
  const auto unmounted = EpochStore::open_existing(directory_);
  ASSERT_TRUE(unmounted);
  EXPECT_FALSE(*unmounted) << "a plain directory";
  const auto none = EpochStore::open_existing(directory_ + "-none");
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
}

TEST_F(EpochStoreTest, ErrorForAnotherUserNamesTheOwner) {
  std::string above = fs::temp_directory_path() / "epoch_store_test-XXXXXX";
  ASSERT_NE(mkdtemp(above.data()), nullptr);
  const auto search = fs::perms::group_exec | fs::perms::others_exec;
  fs::permissions(above, search, fs::perm_options::add);
  const std::string directory = above + "/epochs";
  ASSERT_TRUE(EpochStore::open(directory));
  ASSERT_EQ(seteuid(65'534), 0);
  const auto refused = EpochStore::open_existing(directory);
  ASSERT_EQ(seteuid(0), 0);
  umount2(directory.c_str(), MNT_DETACH);
  fs::remove_all(above);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, EACCES);
  EXPECT_NE(refused.error().message.find("belongs to uid 0"), std::string::npos)
      << refused.error().message;
}

TEST_F(EpochStoreTest, OnlyRootSeesTheEpochs) {
  struct stat status {};
  ASSERT_EQ(stat(directory_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_TRUE(seal(state(1), 0, "abc", {0, 1, 2}));
  ASSERT_EQ(stat((directory_ + "/db").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0077, 0u);
}

TEST_F(EpochStoreTest, LaterEpochReplacesPagesOfTheEarlierOne) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  EXPECT_EQ(kept(), "abcd");
  ASSERT_TRUE(seal(state(2), 4, "XY", {0, 4, 2, 5}));
  EXPECT_EQ(kept(), "aXcY");
  EXPECT_FALSE(fs::exists(epoch_path(1)));
}

TEST_F(EpochStoreTest, StoreTakesTheMemoryOfOneEpoch) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  for (uint64_t epoch = 2; epoch < 50; ++epoch) {
    const uint64_t offset = 4 + (epoch - 2) * 2;
    ASSERT_TRUE(seal(state(epoch), offset, "xy", {0, offset, 2, offset + 1}));
    EXPECT_EQ(memory_pages(epoch), 4u) << epoch;
  }
  EXPECT_EQ(kept(), "axcy");
}

TEST_F(EpochStoreTest, OlderEpochsCostWhatHasChangedSince) {
  EpochState next = state(1);
  ASSERT_TRUE(seal(next, 0, "abcd", {0, 1, 2, 3}));
  std::string letters = "abcd";
  std::map<uint64_t, std::string> expected = {{1, letters}};
  for (uint64_t epoch = 2; epoch < 40; ++epoch) {
    next = with_newest(next, state(epoch).newest, epoch < 3 ? 1 : epoch - 2);
    const uint64_t offset = 4 + (epoch - 2) * 2;
    const auto letter = static_cast<char>('A' + epoch % 26);
    ASSERT_TRUE(seal(next, offset, std::string(2, letter), {0, offset, 2, offset + 1}));
    letters[1] = letters[3] = letter;
    expected[epoch] = letters;
    for (uint64_t older = epoch < 3 ? 1 : epoch - 2; older <= epoch; ++older) {
      EXPECT_EQ(kept(older), expected[older]) << older << " after " << epoch;
    }
    if (epoch < 3) continue;
    EXPECT_EQ(memory_pages(epoch), 2u + 3 * 2) << epoch;
    EXPECT_FALSE(fs::exists(epoch_path(epoch - 3)));
  }
}

TEST_F(EpochStoreTest, OlderEpochOfAnEarlierRunIsWhole) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  const EpochState second = with_newest(state(1), state(2).newest, 1);
  ASSERT_TRUE(seal(second, 4, "XY", {0, 4, 2, 5}));
  EpochState third = with_newest(second, state(3).newest, 2);
  third.run = std::string(32, 'b');
  ASSERT_TRUE(seal(third, 0, "wxyz", {3, 2, 1, 0}));
  EXPECT_EQ(kept(), "zyxw");
  EXPECT_EQ(kept(2), "aXcY");
  EpochState fourth = with_newest(third, state(4).newest, 3);
  ASSERT_TRUE(seal(fourth, 4, "V", {4, 2, 1, 0}));
  EXPECT_EQ(kept(), "Vyxw");
  EXPECT_EQ(kept(3), "zyxw");
  EXPECT_FALSE(fs::exists(epoch_path(2)));
}

TEST_F(EpochStoreTest, PageThatHasArrivedTwiceIsKeptOnce) {
  ASSERT_TRUE(seal(state(1), 0, "abcdAB", {4, 5, 2, 3}));
  EXPECT_EQ(kept(), "ABcd");
  EXPECT_EQ(memory_pages(1), 4u);
}

TEST_F(EpochStoreTest, PagesOfZerosTakeNoMemory) {
  ASSERT_TRUE(seal(state(1), 0, "a00b", {0, 1, 2, 3}));
  EXPECT_EQ(kept(), "a00b");
  EXPECT_EQ(memory_pages(1), 2u);
}

TEST_F(EpochStoreTest, KeepsTheEarlierEpochIfTheNewOneCannotBeRead) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  EXPECT_EQ(seal(state(2), 4, "X!", {0, 4, 2, 5}).error().errno_value, EIO);
  EXPECT_EQ(kept(), "abcd");
  ASSERT_TRUE(seal(state(2, 'b'), 0, "efgh", {0, 1, 2, 3}));
  EXPECT_EQ(kept(), "efgh");
}

TEST_F(EpochStoreTest, EpochHasNoPagesOfAFailedAttempt) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  EXPECT_FALSE(seal(state(2), 4, "XY!", {0, 4, 2, 5}));
  ASSERT_TRUE(seal(state(2), 4, "0Z", {0, 4, 2, 5}));
  EXPECT_EQ(kept(), "a0cZ");
}

TEST_F(EpochStoreTest, PagesOfTheNewestEpochAreNotOverwritten) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  EXPECT_EQ(seal(state(2), 3, "XY", {0, 1, 3, 4}).error().errno_value, EPROTO);
  EXPECT_EQ(kept(), "abcd");
}

TEST_F(EpochStoreTest, IndexThatDoesNotFitTheMemoryIsRefused) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  EXPECT_EQ(seal(state(2), 4, "X", {0, 1, 2, 5}).error().errno_value, EPROTO);
  EXPECT_EQ(kept(), "abcd");
}

TEST_F(EpochStoreTest, NewRunHasItsOwnMemory) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  ASSERT_TRUE(seal(state(2, 'b'), 0, "wxyz", {3, 2, 1, 0}));
  EXPECT_EQ(kept(), "zyxw");
  const auto left = std::distance(fs::directory_iterator(directory_ + "/db"), {});
  EXPECT_EQ(left, 4) << "state, lock, one epoch, one memory file";
}

TEST_F(EpochStoreTest, FullTmpfsLeavesTheEpochBefore) {
  ASSERT_EQ(mount("none", directory_.c_str(), nullptr, MS_REMOUNT, "size=256k"), 0);
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  const Status full = seal(state(2), 4, std::string(100, 'x'), {0, 1, 2, 5});
  EXPECT_EQ(full.error().errno_value, ENOSPC);
  EXPECT_NE(full.error().message.find("remount it with a larger size"), std::string::npos);
  EXPECT_EQ(kept(), "abcd");
}

TEST_F(EpochStoreTest, DiscardedNameIsFree) {
  ASSERT_TRUE(seal(state(1), 0, "a", {0}));
  {
    auto locked = store_->lock("db");
    ASSERT_TRUE(locked);
    ASSERT_TRUE(locked->discard());
  }
  EXPECT_EQ(store_->read("db").error().errno_value, ENOENT);
  EXPECT_TRUE(store_->list()->empty());
  const auto locked = store_->lock("db");
  ASSERT_TRUE(locked);
  EXPECT_FALSE(locked->exists());
}

TEST_F(EpochStoreTest, LockFindsTheStateThatThePreviousHolderWrote) {
  ASSERT_TRUE(seal(state(1), 0, "a", {0}));
  auto first = store_->lock("db");
  ASSERT_TRUE(first);
  uint64_t seen = 0;
  std::thread second([&] {
    const auto locked = store_->lock("db");
    if (locked) seen = locked->state().newest.number;
  });
  EpochState next = state(1);
  next.newest.number = 9;
  ASSERT_TRUE(first->write(next));
  { const LockedEpochs ends = std::move(*first); }
  second.join();
  EXPECT_EQ(seen, 9u);
}

TEST_F(EpochStoreTest, ForeignStateIsAnError) {
  ASSERT_TRUE(seal(state(1), 0, "a", {0}));
  std::ofstream(directory_ + "/db/state.json") << "{}";
  EXPECT_EQ(store_->lock("db").error().errno_value, EPROTO);
  EXPECT_EQ(store_->lock("a/b").error().errno_value, EINVAL);
}

TEST_F(EpochStoreTest, HeldEpochKeepsItsPagesWhileLaterOnesAreSealed) {
  ASSERT_TRUE(seal(state(1), 0, "abcd", {0, 1, 2, 3}));
  std::string held;
  {
    const auto locked = store_->lock("db");
    ASSERT_TRUE(locked);
    auto holding = locked->hold(1);
    ASSERT_TRUE(holding) << holding.error().message;
    held = *holding;
    EXPECT_EQ(locked->hold(7).error().errno_value, ENOENT);
  }
  ASSERT_TRUE(seal(state(2), 4, "XY", {0, 4, 2, 5}));
  ASSERT_TRUE(seal(state(3), 6, "Z", {6, 4, 2, 5}));
  const auto memory = read_whole_file(held + "/memory");
  ASSERT_TRUE(memory);
  for (const uint64_t page : {0, 1, 2, 3}) EXPECT_EQ((*memory)[page * kPage], "abcd"[page]);
  EXPECT_TRUE(read_page_index(held + "/images/" + kPageIndexFile));
  const auto locked = store_->lock("db");
  ASSERT_TRUE(locked);
  locked->release_held();
  EXPECT_FALSE(fs::exists(held));
  EXPECT_EQ(memory_pages(3), 4u) << "only what epoch 3 uses";
  EXPECT_EQ(kept(), "ZXcY");
}

TEST_F(EpochStoreTest, HeldEpochOutlivesANewRun) {
  ASSERT_TRUE(seal(state(1, 'a'), 0, "abcd", {0, 1, 2, 3}));
  std::string held;
  {
    const auto locked = store_->lock("db");
    ASSERT_TRUE(locked);
    held = locked->hold(1).value_or("");
  }
  ASSERT_TRUE(seal(state(1, 'b'), 0, "vwxy", {0, 1, 2, 3}));
  const auto memory = read_whole_file(held + "/memory");
  ASSERT_TRUE(memory);
  EXPECT_EQ((*memory)[0], 'a');
  EXPECT_EQ(kept(), "vwxy");
}

TEST_F(EpochStoreTest, EpochOnTheDiskIsForgottenWithTheOthers) {
  ASSERT_TRUE(seal(state(1), 0, "ab", {0, 1}));
  const std::string file = images_ + "/db.kept";
  const auto begin = [&](const LockedEpochs& locked) {
    ASSERT_TRUE(std::ofstream(file) << "epoch");
    ASSERT_TRUE(locked.note_on_disk({.file = file, .run = "", .number = 1}));
  };
  auto locked = store_->lock("db");
  ASSERT_TRUE(locked);
  begin(*locked);
  EXPECT_EQ(store_->on_disk("db")->number, 1u);
  ASSERT_TRUE(locked->remove_epochs());
  EXPECT_FALSE(fs::exists(file));
  EXPECT_FALSE(store_->on_disk("db"));
  begin(*locked);
  ASSERT_TRUE(locked->discard());
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(EpochStoreTest, EpochThatCannotBeReadFromTheDiskIsListed) {
  {
    const auto locked = store_->lock("db");
    ASSERT_TRUE(locked);
    ASSERT_TRUE(locked->note_on_disk({.file = images_ + "/db.kept", .error = "wrong key"}));
  }
  EXPECT_EQ(store_->unreadable(), std::vector<std::string>{"db"});
  EXPECT_EQ(store_->read("db").error().message, "wrong key");
  EXPECT_TRUE(store_->list()->empty());
  EXPECT_FALSE(store_->on_disk("../db"));
}

}  // namespace
}  // namespace ppmr
