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

#include "migration/records/take_to.h"
#include "migration/relay/target_driver.h"
#include "migration/target/epoch_requests.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
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
    EpochState kept = copy.state();
    OwnershipRecord record;
    record.id = random_migration_id();
    record.role = MigrationRole::kTarget;
    record.peer = kept.peer;
    record.peer_node_id = kept.tree.node_id;
    record.endpoint = nlohmann::json::object();
    record.node_id = read_node_id();
    record.boot_id = read_boot_id();
    record.mountpoint = "/mnt/in";
    record.restart_policy = nlohmann::json::object();
    record.trees.resize(1);
    record.trees[0].root = kept.tree.root;
    record.trees[0].root_start_time = kept.tree.root_start_time;
    record.trees[0].checkpoint = kept.name;
    record.trees[0].protected_as = kept.name;
    const auto created = records_->create(record);
    ASSERT_TRUE(created) << created.error().message;
    const auto read = records_->read(record.id, record.role);
    ASSERT_TRUE(read) << read.error().message;
    if (reached == MigrationState::kAborted) {
      const auto step = take_target_step(*records_, record.id, target_event::Abort{"test"});
      ASSERT_TRUE(step) << step.error().message;
    }
    for (const auto state : {MigrationState::kReady, MigrationState::kRunning}) {
      if (reached != state && reached != MigrationState::kRunning) continue;
      const auto taken = advance(*records_, record.id, record.role, state);
      ASSERT_TRUE(taken) << taken.error().message;
    }
    kept.takeover = record.id;
    ASSERT_TRUE(copy.write(kept));
  }
  // Begins a takeover of "db", and returns its ID.
  std::string take_over(MigrationState reached) {
    auto locked = epochs_->lock("db");
    EXPECT_TRUE(locked);
    begin(*locked, reached);
    return locked->state().takeover;
  }
  // Adds a version to a record that this version of ppmr cannot read.
  void spoil(const std::string& id) const {
    std::ofstream(records_->path_of(id, MigrationRole::kTarget) + "/99.json") << "{}";
  }
  // Damages all versions of a record.
  void damage(const std::string& id) const {
    for (const auto& entry :
         fs::directory_iterator(records_->path_of(id, MigrationRole::kTarget))) {
      if (entry.path().extension() == ".json") std::ofstream(entry.path()) << "{";
    }
  }
  // Returns what the partner answers to the source that begins to protect another process.
  nlohmann::json answer_to_new_process(const std::string& name) const {
    agent_request::EpochOpen open;
    open.name = name;
    open.tree = {"node", "boot", 99, 5000, "nginx"};
    return answer_to(open);
  }
  // Returns what the partner answers to the source of "db", unless the request has another name.
  template <typename Request>
  nlohmann::json answer_to(Request request) const {
    const EpochState state = epochs_->read("db").value_or(EpochState());
    if (request.name.empty()) request.name = "db";
    if (request.tree.root == 0) request.tree = state.tree;
    request.run = random_migration_id();
    const EpochRequests requests(*records_, {.mountpoint = "/mnt/in",
                                             .peer = "tls-psk one",
                                             .audit_file = "",
                                             .restart_policy = nlohmann::json::object(),
                                             .directory = base_ + "/epochs"});
    return requests.answer(request);
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

TEST_F(CopyTest, IsNotMadeIfTheDiskMayHaveAnEpochOfItsName) {
  ASSERT_TRUE(epochs_->lock("db@copy"));  // creates the directory
  std::ofstream(base_ + "/epochs/db@copy/on-disk.json") << "nonsense";
  const auto copy = prepare_copy(*records_, *epochs_, "db", 0);
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.error().errno_value, EPROTO);
}

// The source kills its copy if the answer has `replaced`, and the takeover may not be decided.
TEST_F(CopyTest, SourceIsNotReplacedByATakeoverWhoseRecordCannotBeRead) {
  const std::string id = take_over(MigrationState::kReady);
  spoil(id);
  const nlohmann::json answer = answer_to(agent_request::EpochContact{});
  EXPECT_FALSE(answer.at("ok"));
  EXPECT_FALSE(answer.at("replaced")) << answer;
  EXPECT_EQ(answer.at("errno"), EAGAIN) << answer;
  EXPECT_THAT(answer.at("error"), HasSubstr(id));
  EXPECT_EQ(epochs_->read("db")->takeover, id);
  EXPECT_TRUE(fs::exists(epochs_->epoch_directory("db", 1)));
}

TEST_F(CopyTest, SourceIsReplacedByATakeoverWhoseRecordWasRemoved) {
  const std::string id = take_over(MigrationState::kRunning);
  ASSERT_TRUE(forget_epochs(*epochs_, "db", id)) << "its end";
  fs::remove_all(records_->path_of(id, MigrationRole::kTarget));
  EXPECT_TRUE(answer_to(agent_request::EpochContact{}).at("replaced"));
}

// The record of an aborted takeover is removed, too, when it is old.
TEST_F(CopyTest, SourceIsNotReplacedByAnAbortedTakeoverWhoseRecordWasRemoved) {
  const EpochState state = epochs_->read("db").value();
  const std::string id = take_over(MigrationState::kAborted);
  EXPECT_FALSE(has_lost_record(*records_, epochs_->read("db").value()));
  fs::remove_all(records_->path_of(id, MigrationRole::kTarget));
  const nlohmann::json answer = answer_to(agent_request::EpochContact{});
  EXPECT_FALSE(answer.at("ok")) << answer;
  EXPECT_FALSE(answer.at("replaced")) << answer;
  EXPECT_EQ(answer.at("errno"), EAGAIN) << answer;
  EXPECT_THAT(answer.at("error"), HasSubstr("ppmr takeover db --discard"));
  EXPECT_TRUE(fs::exists(epochs_->epoch_directory("db", 1)));
  EXPECT_TRUE(has_lost_record(*records_, epochs_->read("db").value()));
  ASSERT_TRUE(epochs_->lock("db")->discard());
  agent_request::EpochOpen open;
  open.tree = state.tree;
  EXPECT_TRUE(answer_to(open).at("ok"));
}

TEST_F(CopyTest, SourceIsNotReplacedByATakeoverWhoseRecordWasSetAside) {
  const std::string id = take_over(MigrationState::kReady);
  spoil(id);
  EXPECT_FALSE(has_lost_record(*records_, epochs_->read("db").value()));
  ASSERT_EQ(records_->set_unreadable_aside().size(), 1u);
  const nlohmann::json answer = answer_to(agent_request::EpochContact{});
  EXPECT_FALSE(answer.at("ok")) << answer;
  EXPECT_FALSE(answer.at("replaced")) << answer;
  EXPECT_THAT(answer.at("error"), HasSubstr("unreadable-" + id));
  EXPECT_TRUE(has_lost_record(*records_, epochs_->read("db").value()));
}

// The record that cannot be read may be the one of a takeover that has let this process run.
TEST_F(CopyTest, SourceDoesNotGoOnWhileARecordCannotBeRead) {
  const EpochState state = epochs_->read("db").value();
  spoil(take_over(MigrationState::kRunning));
  ASSERT_TRUE(epochs_->lock("db")->discard());  // as after a restart of this node
  agent_request::EpochOpen open;
  open.tree = state.tree;
  const nlohmann::json answer = answer_to(open);
  EXPECT_FALSE(answer.at("ok")) << answer;
  EXPECT_FALSE(answer.value("replaced", false)) << answer;
  EXPECT_EQ(answer.value("errno", 0), EAGAIN) << answer;
}

// The earlier versions of the record show to which process it belongs.
TEST_F(CopyTest, UnreadableRecordRefusesNoOtherProcess) {
  spoil(take_over(MigrationState::kRunning));
  ASSERT_TRUE(epochs_->lock("db")->discard());
  EXPECT_TRUE(answer_to_new_process("web").at("ok"));
  EXPECT_TRUE(answer_to_new_process("db").at("ok")) << "another process of this name";
}

TEST_F(CopyTest, RecordWithoutAReadableVersionRefusesNewNamesUntilItIsRemoved) {
  const std::string id = take_over(MigrationState::kRunning);
  damage(id);
  const auto refusal = [&] {
    const nlohmann::json answer = answer_to_new_process("mail");
    EXPECT_EQ(answer.value("errno", 0), EAGAIN) << answer;
    return answer.value("error", "");
  };
  EXPECT_THAT(refusal(), AllOf(HasSubstr(id), HasSubstr("ppmr migrate --recover")));
  ASSERT_EQ(records_->set_unreadable_aside().size(), 1u);
  EXPECT_THAT(refusal(), HasSubstr("/unreadable-" + id));
  for (const auto& entry : fs::directory_iterator(records_->directory())) {
    if (entry.path().filename().string().starts_with("unreadable-")) fs::remove_all(entry.path());
  }
  EXPECT_TRUE(answer_to_new_process("mail").at("ok"));
}

TEST_F(CopyTest, NewProcessWaitsUntilTheOldOneNeedsNoEpoch) {
  const std::string id = take_over(MigrationState::kRunning);
  agent_request::EpochOpen open;
  open.tree = {"node", "boot", kFreePid, 5000, "redis"};
  const nlohmann::json refused = answer_to(open);
  EXPECT_FALSE(refused.at("ok")) << refused;
  EXPECT_EQ(refused.value("errno", 0), EBUSY) << refused;
  EXPECT_FALSE(refused.value("replaced", false)) << refused;
  EXPECT_EQ(epochs_->read("db")->takeover, id);
  ASSERT_TRUE(advance(*records_, id, MigrationRole::kTarget, MigrationState::kFinished));
  EXPECT_TRUE(answer_to(open).at("ok"));
}

TEST_F(CopyTest, EndOfATakeoverForgetsOnlyItsOwnEpochs) {
  const std::string id = take_over(MigrationState::kRunning);
  const std::string epoch = epochs_->epoch_directory("db", 1);
  ASSERT_TRUE(forget_epochs(*epochs_, "db", random_migration_id()));
  EXPECT_TRUE(fs::exists(epoch));
  ASSERT_TRUE(forget_epochs(*epochs_, "db", id));
  EXPECT_FALSE(fs::exists(epoch));
  EXPECT_EQ(epochs_->read("db")->takeover, id) << "it shows that the source was replaced";
}

}  // namespace
}  // namespace ppmr
