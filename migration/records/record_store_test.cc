#include "migration/records/record_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/disk_faults.h"
#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;
using std::chrono::milliseconds;
constexpr MigrationRole kSource = MigrationRole::kSource;

class RecordStoreTest : public testing::Test {
 protected:
  RecordStoreTest() {
    std::string path = testing::TempDir() + "/store-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  ~RecordStoreTest() override { std::filesystem::remove_all(directory_); }

  RecordStore open() {
    auto store = RecordStore::open(directory_ + "/state");
    EXPECT_TRUE(store) << store.error().message;
    return *store;
  }
  static OwnershipRecord fresh() {
    OwnershipRecord record;
    record.id = random_migration_id();
    record.endpoint = nlohmann::json::object();
    record.trees.resize(1);
    record.trees[0].checkpoint = "worker-17";
    return record;
  }

  std::string directory_;
};

TEST_F(RecordStoreTest, CreatedRecordIsVisibleToAnotherStore) {
  const auto created = open().create(fresh());
  ASSERT_TRUE(created) << created.error().message;
  const auto read = open().read(created->id, kSource);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->state(), kPreparing);
  EXPECT_EQ(read->version, 1u);
  struct stat info;
  ASSERT_EQ(stat((directory_ + "/state").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(RecordStoreTest, RefusesToCreateTheSameIdTwice) {
  const auto created = open().create(fresh());
  ASSERT_TRUE(created);
  const auto again = open().create(*created);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().errno_value, EEXIST);
}

TEST_F(RecordStoreTest, CreatorThatDiedBeforeTheFirstVersionDoesNotTakeTheId) {
  const RecordStore store = open();
  const OwnershipRecord record = fresh();
  ASSERT_EQ(mkdir((directory_ + "/state/" + record.id + ".source").c_str(), 0700), 0);
  const auto created = store.create(record);
  EXPECT_TRUE(created) << created.error().message;
}

TEST_F(RecordStoreTest, AbortedFromTheStartIsSettledAndKeepsTheMigrationFromBeginning) {
  const RecordStore store = open();
  auto record = fresh();
  record.error = "taken back";
  const auto aborted = store.create_aborted(record);
  ASSERT_TRUE(aborted) << aborted.error().message;
  EXPECT_EQ(store.read(record.id, kSource)->state(), kAborted);
  EXPECT_EQ(store.read(record.id, kSource)->error, "taken back");
  EXPECT_TRUE(store.list_unsettled(kSource)->empty());
  const auto late = store.create(record);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().errno_value, EEXIST);
  EXPECT_EQ(store.read(record.id, kSource)->state(), kAborted);
}

TEST_F(RecordStoreTest, MigrationThatHasBegunCannotBeTakenBack) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  const auto late = store.create_aborted(*created);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().errno_value, EEXIST);
  EXPECT_EQ(store.read(created->id, kSource)->state(), kPreparing);
}

TEST_F(RecordStoreTest, ExactlyOneOfManyCreatorsWins) {
  const RecordStore store = open();
  for (int round = 0; round < 20; ++round) {
    const OwnershipRecord record = fresh();
    std::atomic<int> winners = 0;
    std::vector<std::thread> creators;
    for (int i = 0; i < 4; ++i) {
      creators.emplace_back([&, i] {
        const auto created = i % 2 == 0 ? store.create(record) : store.create_aborted(record);
        if (created) ++winners;
      });
    }
    for (std::thread& creator : creators) creator.join();
    EXPECT_EQ(winners, 1);
  }
}

TEST_F(RecordStoreTest, LateDecisionFailsAndQuotesTheEarlierDecision) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  ASSERT_TRUE(advance(store, created->id, kSource, kAborted, [](OwnershipRecord& record) -> Status {
    record.error = "the hook was faster";
    return {};
  }));
  const auto late = advance(store, created->id, kSource, kCommitted);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().errno_value, EPERM);
  EXPECT_NE(late.error().message.find("the hook was faster"), std::string::npos);
  EXPECT_EQ(store.read(created->id, kSource)->state(), kAborted);
}

TEST_F(RecordStoreTest, ExactlyOneOfManyDecisionsWins) {
  const RecordStore store = open();
  for (int round = 0; round < 20; ++round) {
    const auto created = store.create(fresh());
    ASSERT_TRUE(created);
    for (const MigrationState state : {kDumping, kFrozen, kSealed}) {
      ASSERT_TRUE(advance(store, created->id, kSource, state));
    }
    std::atomic<int> winners = 0;
    std::vector<std::thread> deciders;
    for (int i = 0; i < 4; ++i) {
      deciders.emplace_back([&, i] {
        const bool won = store
                             .change(created->id, kSource,
                                     [&](OwnershipRecord& record) -> Status {
                                       return record.move_to(i % 2 == 0 ? kCommitted : kAborted);
                                     })
                             .has_value();
        if (won) ++winners;
      });
    }
    for (std::thread& decider : deciders) decider.join();
    EXPECT_EQ(winners, 1);
  }
}

TEST_F(RecordStoreTest, ChangeThatSmugglesAnotherStateIsRefused) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  ASSERT_TRUE(advance(store, created->id, kSource, kDumping));
  const auto smuggle = [&](const std::function<void(OwnershipRecord&)>& change) {
    const auto changed = store.change(created->id, kSource, [&](OwnershipRecord& record) -> Status {
      change(record);
      return {};
    });
    EXPECT_FALSE(changed);
    if (!changed) {
      EXPECT_EQ(changed.error().errno_value, EPERM) << changed.error().message;
    }
    EXPECT_EQ(store.read(created->id, kSource)->version, 2u);
    EXPECT_EQ(store.read(created->id, kSource)->state(), kDumping);
  };
  for (const MigrationState state : {kPreparing, kSealed, kCommitted, kFinished}) {
    smuggle([&](OwnershipRecord& record) { take_to(record, state); });
  }
  smuggle([](OwnershipRecord& record) { record.begin(realtime_ns()); });
  // The same state, with another past.
  smuggle([](OwnershipRecord& record) { take_to(record, kDumping, 7, 7); });
  smuggle([](OwnershipRecord& record) { record.id = random_migration_id(); });
  smuggle([](OwnershipRecord& record) {
    record.role = MigrationRole::kTarget;
    take_to(record, kReady);
  });
}

TEST_F(RecordStoreTest, VersionTakesAtMostOneStep) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  EXPECT_FALSE(store.change(created->id, kSource, [](OwnershipRecord& record) -> Status {
    if (Status moved = record.move_to(kDumping); !moved) return moved;
    return record.move_to(kFrozen);
  }));
  EXPECT_EQ(store.read(created->id, kSource)->state(), kPreparing);
}

TEST_F(RecordStoreTest, ConcurrentChangesAreAllApplied) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 25; ++n) {
        EXPECT_TRUE(store.change(created->id, kSource, [](OwnershipRecord& record) -> Status {
          ++record.confirmations;
          return {};
        }));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(store.read(created->id, kSource)->confirmations, created->confirmations + 100);
}

TEST_F(RecordStoreTest, WaitReturnsWhenTheRecordChangesOrTheTimeoutExpires) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  auto unchanged = store.wait(created->id, kSource, 1, milliseconds(30));
  ASSERT_TRUE(unchanged);
  EXPECT_EQ(unchanged->version, 1u);
  std::thread writer([&] { EXPECT_TRUE(advance(open(), created->id, kSource, kDumping)); });
  const auto changed = store.wait(created->id, kSource, 1, milliseconds(10'000));
  writer.join();
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->state(), kDumping);
}

TEST_F(RecordStoreTest, ContactRestartsTheSilenceOfTheCoordinator) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  const std::string path = directory_ + "/state/" + created->id + ".source";
  const auto set_contact = [&](int64_t second) {
    const timespec times[2] = {{.tv_sec = second, .tv_nsec = 0}, {.tv_sec = second, .tv_nsec = 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  set_contact(1);
  ContactClock clock(store, created->id, kSource);
  EXPECT_GT(clock.silent_for(), std::chrono::hours(1)) << "before this process looked";
  store.note_contact(created->id, kSource);
  EXPECT_LT(clock.silent_for(), std::chrono::hours(1));
  // As if the node's clock was set back by years before a contact: the contact's time is in the
  // past.
  set_contact(2);
  EXPECT_LT(clock.silent_for(), std::chrono::hours(1));
  set_contact(3);
  ASSERT_TRUE(advance(store, created->id, kSource, kDumping));
  EXPECT_LT(clock.silent_for(), std::chrono::hours(1)) << "a change";
}

TEST_F(RecordStoreTest, HalfWrittenVersionIsInvisible) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  std::ofstream(directory_ + "/state/" + created->id + ".source/new-0123") << "{\"half\":";
  EXPECT_EQ(store.read(created->id, kSource)->version, 1u);
}

// An earlier version would be a stale record.
TEST_F(RecordStoreTest, ReturnsNoEarlierVersionIfADiskFailsBeforeTheLatest) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  ASSERT_TRUE(advance(store, created->id, kSource, kAborted));
  const ReaddirFault fault({"1.json"}, EIO);
  const auto read = store.read(created->id, kSource);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EIO);
}

// A directory takes the place of a file on a damaged disk: read(2) fails for both.
TEST_F(RecordStoreTest, ReportsARecordThatCannotBeRead) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(created);
  std::filesystem::create_directory(directory_ + "/state/" + created->id + ".source/2.json");
  const auto read = store.read(created->id, kSource);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EIO);
}

TEST_F(RecordStoreTest, ReportsAFailingDiskInListsOfRecords) {
  const RecordStore store = open();
  for (const auto& list : std::vector<std::function<Result<std::vector<OwnershipRecord>>()>>{
           [&] { return store.list(); }, [&] { return store.list_unsettled(kSource); },
           [&] { return store.list_for_display(0); }}) {
    const ReaddirFault fault({"a file"}, EIO);
    const auto listed = list();
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().errno_value, EIO);
  }
}

TEST_F(RecordStoreTest, ListsIntactRecordsAndReportsDamagedOnes) {
  const RecordStore store = open();
  const auto good = store.create(fresh());
  const auto bad = store.create(fresh());
  ASSERT_TRUE(good && bad);
  std::ofstream(directory_ + "/state/" + bad->id + ".source/2.json") << "nonsense";
  std::vector<Error> unreadable;
  const auto records = store.list(&unreadable);
  ASSERT_TRUE(records);
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ((*records)[0].id, good->id);
  ASSERT_EQ(unreadable.size(), 1u);
  EXPECT_NE(unreadable[0].message.find(bad->id), std::string::npos);
}

TEST_F(RecordStoreTest, ListLeavesOutRecordsThatTheCallerKnows) {
  const RecordStore store = open();
  const auto known = store.create(fresh());
  const auto other = store.create(fresh());
  ASSERT_TRUE(known && other);
  const auto records = store.list(nullptr, {RecordStore::name_of(known->id, kSource)});
  ASSERT_TRUE(records);
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ((*records)[0].id, other->id);
}

TEST_F(RecordStoreTest, PruneRemovesOldRecordsThatAreOverAndWhosePeerWasNotified) {
  const RecordStore store = open();
  auto make = [&](bool over, bool notified, bool old) {
    auto record = store.create(fresh());
    if (over) (void)advance(store, record->id, kSource, kAborted);
    (void)store.change(record->id, kSource, [&](OwnershipRecord& latest) -> Status {
      latest.peer_notified = latest.tasks_resumed = notified;
      return {};
    });
    if (old) {
      const std::string path = store.directory() + "/" + record->id + ".source";
      const timespec two_hours_ago{time(nullptr) - 7200, 0};
      const timespec times[] = {two_hours_ago, two_hours_ago};
      EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    }
    return record->id;
  };
  for (int i = 0; i < 5; ++i) make(true, true, /*old=*/true);
  const auto young = make(true, true, /*old=*/false);
  const auto open_one = make(false, false, /*old=*/true);
  const auto not_notified = make(true, false, /*old=*/true);
  store.prune(std::chrono::hours(1));
  std::vector<std::string> left;
  const auto records = store.list();
  ASSERT_TRUE(records);
  for (const auto& record : *records) left.push_back(record.id);
  EXPECT_EQ(left, (std::vector<std::string>{young, open_one, not_notified}));
}

TEST_F(RecordStoreTest, UnsettledRecordsAreOpenOrTheirPeerWasNotNotified) {
  const RecordStore store = open();
  const auto running = store.create(fresh());
  const auto aborted = store.create(fresh());
  const auto settled = store.create(fresh());
  auto at_target = fresh();
  at_target.role = MigrationRole::kTarget;
  ASSERT_TRUE(store.create(at_target));
  for (const auto& record : {aborted, settled}) {
    ASSERT_TRUE(advance(store, record->id, kSource, kAborted));
  }
  const auto notify = [&](const std::string& id) {
    ASSERT_TRUE(store.change(id, kSource, [](OwnershipRecord& latest) -> Status {
      latest.peer_notified = latest.tasks_resumed = true;
      return {};
    }));
  };
  const auto unsettled = [&] {
    std::vector<std::string> ids;
    const auto records = store.list_unsettled(kSource);
    for (const auto& record : *records) ids.push_back(record.id);
    return ids;
  };
  notify(settled->id);
  EXPECT_EQ(unsettled(), (std::vector<std::string>{running->id, aborted->id}));
  notify(aborted->id);
  EXPECT_EQ(unsettled(), std::vector<std::string>{running->id});
  EXPECT_EQ(store.list()->size(), 4u) << "settled records stay";
}

TEST_F(RecordStoreTest, SettledRecordIsReadOnlyOnce) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(advance(store, created->id, kSource, kAborted, [](OwnershipRecord& latest) -> Status {
    latest.peer_notified = latest.tasks_resumed = true;
    return {};
  }));
  EXPECT_TRUE(store.list_unsettled(kSource)->empty());
  // Adds a file that no program writes, a copy of an early version under the highest number. A
  // reader of this file would take the migration for an open one.
  const std::string path = directory_ + "/state/" + created->id + ".source/";
  std::filesystem::copy_file(path + "1.json", path + "9.json");
  EXPECT_TRUE(store.list_unsettled(kSource)->empty());
  store.prune(std::chrono::seconds(-1));
  EXPECT_EQ(store.list()->size(), 1u) << "pruning reads the record";
}

TEST_F(RecordStoreTest, PruneKeepsATargetsRecordUntilTheSourceHasSeenTheOutcome) {
  const RecordStore store = open();
  const auto make = [&](bool seen, std::chrono::hours age) {
    auto record = fresh();
    record.role = MigrationRole::kTarget;
    const auto created = store.create(record);
    EXPECT_TRUE(advance(store, created->id, MigrationRole::kTarget, kAborted,
                        [&](OwnershipRecord& latest) -> Status {
                          latest.peer_notified = seen;
                          return {};
                        }));
    const std::string path = store.directory() + "/" + created->id + ".target";
    const timespec then{time(nullptr) - std::chrono::seconds(age).count(), 0};
    const timespec times[] = {then, then};
    EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return created->id;
  };
  constexpr std::chrono::hours kDay{24};
  const auto seen = make(true, 40 * kDay);
  const auto unseen = make(false, 40 * kDay);
  const auto ancient = make(false, 400 * kDay);
  store.prune();
  EXPECT_FALSE(store.read(seen, MigrationRole::kTarget));
  EXPECT_TRUE(store.read(unseen, MigrationRole::kTarget));
  EXPECT_FALSE(store.read(ancient, MigrationRole::kTarget));
}

TEST_F(RecordStoreTest, UnreadableRecordIsSetAsideAndNamedOnce) {
  const RecordStore store = open();
  const auto good = store.create(fresh());
  const auto bad = store.create(fresh());
  const auto newer = store.create(fresh());
  const auto path_of = [&](const OwnershipRecord& record) {
    return store.directory() + "/" + record.id + ".source/1.json";
  };
  std::ofstream(path_of(*bad)) << "{\"id\":";
  std::ofstream(path_of(*newer)) << "{\"format\":99}";
  const auto reports = store.set_unreadable_aside();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_NE(reports[0].find(path_of(*bad)), std::string::npos) << reports[0];
  const size_t at = reports[0].find(store.directory() + "/unreadable-" + bad->id);
  ASSERT_NE(at, std::string::npos) << reports[0];
  const std::string aside = reports[0].substr(at, reports[0].find(',', at) - at);
  EXPECT_TRUE(std::filesystem::exists(aside + "/1.json")) << aside;
  EXPECT_TRUE(store.set_unreadable_aside().empty());
  const auto read = store.read(bad->id, MigrationRole::kSource);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EPROTO) << "not ENOENT: the migration may have processes";
  EXPECT_NE(read.error().message.find(aside), std::string::npos) << read.error().message;
  EXPECT_FALSE(store.create(*bad)) << "that would hide the record that is set aside";
  EXPECT_EQ(store.list_unreadable(MigrationRole::kSource)->size(), 2u);
  EXPECT_TRUE(store.list_unreadable(MigrationRole::kTarget)->empty());
  std::filesystem::remove_all(aside);
  EXPECT_EQ(store.list_unreadable(MigrationRole::kSource)->size(), 1u);
  EXPECT_EQ(store.read(bad->id, MigrationRole::kSource).error().errno_value, ENOENT);
  std::vector<Error> unreadable;
  EXPECT_EQ(store.list(&unreadable)->size(), 1u);
  ASSERT_EQ(unreadable.size(), 1u) << "the one of a newer version of ppmr";
  EXPECT_NE(unreadable[0].message.find("update ppmr"), std::string::npos);
}

TEST_F(RecordStoreTest, EarlierVersionShowsWhoseRecordCannotBeRead) {
  const RecordStore store = open();
  OwnershipRecord record = fresh();
  record.trees[0].protected_as = "db";
  const auto changed = store.create(record);
  const auto damaged = store.create(fresh());
  ASSERT_TRUE(changed && damaged && store.create(fresh()));
  const auto path_of = [&](const Result<OwnershipRecord>& of) {
    return store.path_of(of->id, kSource);
  };
  std::ofstream(path_of(changed) + "/7.json") << "{";
  std::ofstream(path_of(damaged) + "/1.json") << "{";
  const auto names = [&] {
    std::multiset<std::string> found;
    const auto unreadable = store.list_unreadable(kSource);
    for (const UnreadableRecord& each : unreadable.value()) {
      found.insert(each.earlier ? each.earlier->trees[0].protected_as : "unknown");
    }
    return found;
  };
  const std::multiset<std::string> expected = {"db", "unknown"};
  EXPECT_EQ(names(), expected);
  EXPECT_EQ(store.set_unreadable_aside().size(), 2u);
  EXPECT_EQ(names(), expected);
}

TEST_F(RecordStoreTest, PruneRemovesTheMarkOfASettledRecord) {
  const RecordStore store = open();
  const auto created = store.create(fresh());
  ASSERT_TRUE(advance(store, created->id, kSource, kAborted, [](OwnershipRecord& latest) -> Status {
    latest.peer_notified = latest.tasks_resumed = true;
    return {};
  }));
  EXPECT_TRUE(store.list_unsettled(kSource)->empty());
  EXPECT_FALSE(std::filesystem::is_empty(store.directory()));
  store.prune(std::chrono::seconds(-1));
  EXPECT_TRUE(std::filesystem::is_empty(store.directory()));
}

TEST_F(RecordStoreTest, DisplaysRecordsOfATimeAndReportsDamagedOnes) {
  const RecordStore store = open();
  const auto early = store.create(fresh());
  const auto late = store.create(fresh());
  ASSERT_TRUE(early && late);
  const auto all = store.list_for_display(0);
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].id, early->id);
  const auto recent = store.list_for_display(late->history().front().at_ns);
  ASSERT_EQ(recent->size(), 1u);
  EXPECT_EQ((*recent)[0].id, late->id);
  std::ofstream(directory_ + "/state/" + early->id + ".source/2.json") << "nonsense";
  std::vector<Error> unreadable;
  EXPECT_EQ(store.list_for_display(0, &unreadable)->size(), 1u);
  EXPECT_EQ(unreadable.size(), 1u);
}

TEST_F(RecordStoreTest, RefusesADirectoryThatOtherUsersMayWriteTo) {
  const std::string path = directory_ + "/open";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  const auto store = RecordStore::open(path);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().errno_value, EPERM);
  EXPECT_FALSE(RecordStore::check(path));
  EXPECT_TRUE(RecordStore::check(path + "/missing"));
  EXPECT_FALSE(std::filesystem::exists(path + "/missing"));
}

TEST_F(RecordStoreTest, RefusesAnIdThatIsAPath) {
  const auto read = open().read("../../../etc", kSource);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EINVAL);
}

}  // namespace
}  // namespace ppmr
