#include "migration/target/takeover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "migration/relay/target_driver.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// From criu/include/magic.h.
constexpr uint32_t kPstreeMagic = 0x50273030;
constexpr uint32_t kFilesMagic = 0x56303138;
constexpr uint32_t kIdsMagic = 0x54432030;
constexpr uint32_t kInventoryMagic = 0x58313116;
constexpr uint32_t kPidsOfNode = 1;
constexpr uint32_t kNetworkOfNode = 2;
constexpr pid_t kFreePid = 4'194'304;  // above the kernel's largest one

// A partner that keeps one epoch of "db".
class CopyTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: needs root to mount a tmpfs";
    std::string path = fs::temp_directory_path() / "takeover_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    auto epochs = EpochStore::open(base_ + "/epochs");
    ASSERT_TRUE(epochs) << epochs.error().message;
    epochs_.emplace(std::move(*epochs));
    auto records = RecordStore::open(base_ + "/records");
    ASSERT_TRUE(records) << records.error().message;
    records_.emplace(std::move(*records));
    keep_epoch(kFreePid, {}, kPidsOfNode);
  }
  void TearDown() override {
    epochs_.reset();
    if (base_.empty()) return;
    umount2((base_ + "/epochs").c_str(), MNT_DETACH);
    fs::remove_all(base_);
  }

  void write_images(const std::string& images, pid_t pid, const std::vector<pid_t>& threads,
                    uint32_t pid_namespace) const {
    criu::pstree_entry task;
    task.set_pid(static_cast<uint32_t>(pid));
    task.set_ppid(0);
    task.add_threads(static_cast<uint32_t>(pid));
    for (const pid_t thread : threads) task.add_threads(static_cast<uint32_t>(thread));
    ImageWriter pstree(kPstreeMagic);
    pstree.add(task);
    EXPECT_TRUE(pstree.write(images + "/pstree.img"));
    EXPECT_TRUE(ImageWriter(kFilesMagic).write(images + "/files.img"));
    criu::ids_entry ids;
    ids.set_pid_ns_id(pid_namespace);
    ids.set_net_ns_id(kNetworkOfNode);
    ImageWriter of_root(kIdsMagic);
    of_root.add(ids);
    EXPECT_TRUE(of_root.write(images + "/ids-" + std::to_string(pid) + ".img"));
    criu::inventory_entry inventory;
    inventory.mutable_root_ids()->set_pid_ns_id(kPidsOfNode);
    inventory.mutable_root_ids()->set_net_ns_id(kNetworkOfNode);
    ImageWriter of_node(kInventoryMagic);
    of_node.add(inventory);
    const std::string path = images + "/inventory.img";
    EXPECT_TRUE(of_node.write(path));
    // An inventory has one magic number, all other images have two.
    std::ifstream in(path);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    in.close();
    std::ofstream(path) << bytes.substr(sizeof(uint32_t));
  }

  void keep_epoch(pid_t pid, const std::vector<pid_t>& threads, uint32_t pid_namespace) {
    const std::string images = base_ + "/images";
    fs::remove_all(images);
    fs::create_directories(images);
    write_images(images, pid, threads, pid_namespace);
    ASSERT_TRUE(write_page_index(images + "/" + kPageIndexFile, PageIndex{}));
    EpochState state;
    state.name = "db";
    state.peer = "tls-psk one";
    state.tree = {"node", "boot", pid, 4711, "redis"};
    state.run = random_migration_id();
    state.newest.number = 1;
    auto locked = epochs_->lock("db");
    ASSERT_TRUE(locked);
    const auto nothing = [](uint64_t, std::span<std::byte>) {
      return Result<std::span<const std::byte>>(failure(EIO, "no page"));
    };
    const Status sealed = seal_epoch(*locked, state, {.images = images, .read = nothing});
    ASSERT_TRUE(sealed) << sealed.error().message;
  }

  // Does what a takeover does after it has prepared its copy.
  void begin(LockedEpochs& copy, MigrationState reached) {
    OwnershipRecord record;
    record.id = random_migration_id();
    record.role = MigrationRole::kTarget;
    record.endpoint = nlohmann::json::object();
    record.node_id = read_node_id();
    record.boot_id = read_boot_id();
    record.mountpoint = "/mnt/in";
    record.restart_policy = nlohmann::json::object();
    record.trees.resize(1);
    record.trees[0].root = kFreePid;
    record.trees[0].checkpoint = "db";
    record.trees[0].protected_as = "db@copy";
    const auto created = records_->create(record);
    ASSERT_TRUE(created) << created.error().message;
    const auto read = records_->read(record.id, record.role);
    ASSERT_TRUE(read) << read.error().message;
    if (reached == MigrationState::kAborted) {
      const auto step = take_target_step(*records_, record.id, target_event::Abort{"test"});
      ASSERT_TRUE(step) << step.error().message;
    }
    EpochState state = copy.state();
    state.takeover = record.id;
    ASSERT_TRUE(copy.write(state));
  }
  bool is_there() const { return fs::exists(base_ + "/epochs/db@copy"); }

  std::string base_;
  std::optional<EpochStore> epochs_;
  std::optional<RecordStore> records_;
};

TEST_F(CopyTest, SecondCopyIsJudgedAfterTheFirstHasBegun) {
  auto first = std::make_optional(prepare_copy(*records_, *epochs_, "db", 0));
  ASSERT_TRUE(*first) << first->error().message;
  const std::string run = (*first)->state().run;
  std::atomic<bool> has_answer = false;
  Error refused{0, "it was not refused"};
  std::thread second([&] {
    const auto copy = prepare_copy(*records_, *epochs_, "db", 0);
    if (!copy) refused = copy.error();
    has_answer = true;
  });
  // The second call has the lock of the original while it waits for the lock of the copy.
  while (!has_answer && epochs_->try_lock("db")) std::this_thread::yield();
  EXPECT_FALSE(has_answer) << "it has replaced the first one";
  begin(**first, MigrationState::kRestoring);
  first.reset();
  second.join();
  EXPECT_EQ(refused.errno_value, EBUSY) << refused.message;
  EXPECT_EQ(epochs_->read("db@copy")->run, run);
}

TEST_F(CopyTest, UnreadableStateIsNotReplaced) {
  const std::string state = base_ + "/epochs/db@copy/state.json";
  fs::create_directories(base_ + "/epochs/db@copy");
  std::ofstream(state) << "{";
  EXPECT_FALSE(prepare_copy(*records_, *epochs_, "db", 0));
  EXPECT_EQ(fs::file_size(state), 1u);
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_EQ(fs::file_size(state), 1u);
}

TEST_F(CopyTest, RemainsOfACopyAreDiscarded) {
  ASSERT_TRUE(epochs_->lock("db@copy")) << "killed while it copies";
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_FALSE(is_there());
  ASSERT_TRUE(prepare_copy(*records_, *epochs_, "db", 0)) << "killed before it begins";
  EXPECT_TRUE(is_there());
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_FALSE(is_there());
  {
    auto copy = prepare_copy(*records_, *epochs_, "db", 0);
    ASSERT_TRUE(copy);
    begin(*copy, MigrationState::kAborted);
  }
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_FALSE(is_there());
  EXPECT_TRUE(epochs_->read("db"));
}

TEST_F(CopyTest, CopyThatIsBeingMadeOrRestoredIsLeftAlone) {
  auto copy = std::make_optional(prepare_copy(*records_, *epochs_, "db", 0));
  ASSERT_TRUE(*copy);
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_TRUE(is_there());
  begin(**copy, MigrationState::kRestoring);
  copy.reset();
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_TRUE(is_there());
  EXPECT_EQ(find_running_copy(*records_, *epochs_, "db"), 0) << "it is not decided";
}

TEST_F(CopyTest, CopyWhoseCommandWasKilledDuringTheRestoreIsDiscarded) {
  std::string id;
  {
    auto copy = prepare_copy(*records_, *epochs_, "db", 0);
    ASSERT_TRUE(copy);
    begin(*copy, MigrationState::kRestoring);
    id = copy->state().takeover;
  }
  const fs::path record =
      fs::path(records_->work_path(id, MigrationRole::kTarget, 0)).parent_path();
  fs::last_write_time(record, fs::file_time_type::clock::now() - std::chrono::seconds(20));
  discard_abandoned_copies(*records_, *epochs_);
  EXPECT_FALSE(is_there());
  EXPECT_EQ(records_->read(id, MigrationRole::kTarget)->state(), MigrationState::kAborted);
}

TEST_F(CopyTest, IsRefusedForTheIdOfAThread) {
  std::atomic<pid_t> id = 0;
  std::atomic<bool> is_done = false;
  std::thread other([&] {
    id = static_cast<pid_t>(syscall(SYS_gettid));
    id.notify_one();
    is_done.wait(false);
  });
  id.wait(0);
  keep_epoch(kFreePid, {id}, kPidsOfNode);
  const auto copy = prepare_copy(*records_, *epochs_, "db", 0);
  is_done = true;
  is_done.notify_one();
  other.join();
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.error().errno_value, EEXIST);
  EXPECT_THAT(copy.error().message, HasSubstr("pid " + std::to_string(id)));
  EXPECT_FALSE(is_there());
}

TEST_F(CopyTest, PidsOfAnotherNamespaceAreFree) {
  keep_epoch(getpid(), {}, kPidsOfNode);
  EXPECT_FALSE(prepare_copy(*records_, *epochs_, "db", 0));
  keep_epoch(getpid(), {}, kPidsOfNode + 1);
  EXPECT_TRUE(prepare_copy(*records_, *epochs_, "db", 0));
}

}  // namespace
}  // namespace ppmr
