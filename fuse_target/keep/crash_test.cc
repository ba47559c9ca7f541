// Tests a target that is killed while it keeps checkpoints: the next target has every checkpoint
// that was reported as kept.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>

#include "fuse_target/keep/keep_fixture.h"

namespace ppmr {
namespace {

constexpr int kRounds = 20;

// The step of a file at which DeadlyFiles kills the process.
enum class Step { kNever, kBeforeRename, kAfterRename, kBeforeRemoval, kAfterRemoval };

class DeadlyFiles final : public KeptFiles {
 public:
  DeadlyFiles(const std::string& directory, Step step, int32_t number)
      : files_(directory), step_(step), number_(number) {}

  Result<UniqueFd> open_kept_directory() override { return files_.open_kept_directory(); }
  Result<UniqueFd> create_kept(int32_t number) override { return files_.create_kept(number); }
  Result<UniqueFd> open_kept(int32_t number) override { return files_.open_kept(number); }
  Result<UniqueFd> publish_kept(int32_t number) override {
    die_at(Step::kBeforeRename, number);
    auto published = files_.publish_kept(number);
    die_at(Step::kAfterRename, number);
    return published;
  }
  Result<UniqueFd> remove_kept(int32_t number) override {
    die_at(Step::kBeforeRemoval, number);
    auto removed = files_.remove_kept(number);
    die_at(Step::kAfterRemoval, number);
    return removed;
  }

 private:
  void die_at(Step step, int32_t number) const {
    if (step == step_ && number == number_) ::raise(SIGKILL);
  }

  KeptFilesIn files_;
  const Step step_;
  const int32_t number_;
};

// What a target reports about checkpoint `number` before it dies: 'k' when the checkpoint is kept,
// 'r' before the target begins to remove it, and 'R' when the removal is on the disk.
struct Report {
  char what = 0;
  int32_t number = 0;
};

std::string name_of(int32_t number) { return "c" + std::to_string(number) + "x"; }

std::vector<SentFile> files_of(int32_t number) {
  const auto seed = static_cast<uint32_t>(number);
  return {{"small", {{0, bytes_from(seed, 5000)}}},
          {"large", {{4096, bytes_from(seed + 1, 400'000 + 10'000 * (seed % 32))}}}};
}

class CrashTest : public KeepTest {
 protected:
  // Runs a target in a process that is killed at `step` of checkpoint `number`, or after
  // `reports_max` reports.
  void run_and_kill(int32_t first, Step step, int32_t number, size_t reports_max) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      serve(ends[1], first, step, number);
      ::_exit(1);
    }
    ::close(ends[1]);
    Report report;
    for (size_t count = 0; ::read(ends[0], &report, sizeof report) == sizeof report;) {
      if (report.what == 'k') kept_.insert(report.number);
      if (report.what == 'r') maybe_.insert(report.number), kept_.erase(report.number);
      if (report.what == 'R') maybe_.erase(report.number), removed_.insert(report.number);
      if (++count >= reports_max) ::kill(child, SIGKILL);
    }
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
  [[noreturn]] void serve(int pipe, int32_t first, Step step, int32_t number) {
    const auto say = [&](char what, int32_t about) {
      const Report report{what, about};
      if (::write(pipe, &report, sizeof report) != sizeof report) ::_exit(2);
    };
    DeadlyFiles files(directory_, step, number);
    TargetStore store;
    Keeper keeper(files, keys_, options(), store.tree, store.memory());
    if (!keeper.load()) ::_exit(3);
    keeper.start();
    for (int32_t i = first;; ++i) {
      store.receive_and_seal(name_of(i), files_of(i));
      if (!store.wait_until(name_of(i), KeepState::kKept)) ::_exit(4);
      say('k', i);
      if (i % 3 != 0) continue;
      say('r', i);
      auto top = store.tree.remove_checkpoint(name_of(i));
      std::atomic<bool> done = false;
      keeper.removed(*top, [&](const Status&) {
        done = true;
        done.notify_all();
      });
      done.wait(false);
      say('R', i);
    }
  }
  // Starts a target that is not killed, and compares its checkpoints with the reports.
  void check() {
    KeptFilesIn files(directory_);
    TargetStore store;
    Keeper keeper(files, keys_, options(), store.tree, store.memory());
    ASSERT_TRUE(keeper.load());
    EXPECT_TRUE(keeper.report().unreadable.empty()) << keeper.report().unreadable[0].reason;
    for (const int32_t number : kept_) EXPECT_TRUE(store.tree.checkpoint(name_of(number)));
    for (const int32_t number : removed_) EXPECT_FALSE(store.tree.checkpoint(name_of(number)));
    // Every checkpoint is whole, even if it was not reported as kept.
    for (const CheckpointReport& report : store.tree.checkpoints()) {
      const int32_t number = std::stoi(report.name.substr(1));
      for (const SentFile& file : files_of(number)) {
        const auto& [offset, bytes] = *file.parts.begin();
        const auto read = store.read(report.name, file.name);
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_TRUE(*read == std::string(offset, '\0') + bytes) << report.name;
      }
    }
    for (const std::string& file : this->files()) EXPECT_TRUE(file.ends_with(".kept")) << file;
  }

  int32_t last_number() const {
    int32_t last = 0;
    for (const std::string& file : files()) {
      last = std::max(last, static_cast<int32_t>(std::stol(file.substr(0, 8), nullptr, 16)));
    }
    return last;
  }

  std::set<int32_t> kept_;     // reported as kept
  std::set<int32_t> maybe_;    // being removed when the target was killed
  std::set<int32_t> removed_;  // reported as removed
};

TEST_F(CrashTest, NothingIsLostIfTheTargetIsKilledBeforeOrAfterARenameOrARemoval) {
  int32_t first = 1;
  for (const Step step :
       {Step::kBeforeRename, Step::kAfterRename, Step::kBeforeRemoval, Step::kAfterRemoval}) {
    SCOPED_TRACE(static_cast<int>(step));
    // Each target is killed at its third checkpoint, in this step.
    run_and_kill(first, step, last_number() + 3, SIZE_MAX);
    EXPECT_GE(kept_.size() + removed_.size(), 2u);
    check();
    first += 3;
  }
}

TEST_F(CrashTest, WhatWasReportedIsThereAfterKillsAtAnyMoment) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int32_t round = 0; round < kRounds; ++round) {
    run_and_kill(1 + round * 100, Step::kNever, 0, 1 + random() % 12);
    check();
    if (HasFailure()) return;
  }
  EXPECT_GE(kept_.size(), size_t{kRounds} / 2);
}

}  // namespace
}  // namespace ppmr
