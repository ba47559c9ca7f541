#include "migration/keep/epoch_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/exit_code.h"
#include "base/sync_directory.h"
#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "daemon/command_line/output.h"
#include "migration/epochs/epoch_files.h"
#include "migration/epochs/epoch_store.h"
#include "migration/relay/audit_events.h"
#include "migration/target/takeover.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Polls instead of using inotify: each user has few instances of inotify, and epochs are seconds
// apart.
constexpr std::chrono::milliseconds kLookInterval{500};
constexpr std::chrono::seconds kAfterFailure{10};
constexpr std::chrono::hours kFilePatience{24};  // a slow disk is no failure
constexpr int kNice = 15;                        // streams and restores come first
constexpr uint64_t kSpareBytes = 4 << 20;        // for index and metadata
constexpr const char* kComplete = ".kept";
constexpr const char* kPart = ".part";

void say(const std::string& sentence) { print_to(stderr, "epochs on disk: {}\n", sentence); }

EpochOnDisk describe(const std::string& file, const EpochState& state) {
  return {.file = file,
          .run = state.run,
          .number = state.newest.number,
          .frozen_ns = state.newest.frozen_ns,
          .error = ""};
}

void note_failure(const LockedEpochs& locked, const Error& error) {
  auto known = locked.on_disk();
  if (!known) return;
  known->error = error.message;
  (void)locked.note_on_disk(*known);
}

class EpochWriter {
 public:
  EpochWriter(const WriteEpochsCommand& options, RecordStore records, EpochStore epochs)
      : options_(options),
        directory_(options.keep_directory + "/epochs"),
        records_(std::move(records)),
        epochs_(std::move(epochs)) {}

  Status prepare();
  void bring_back_all();
  void write_all();

 private:
  enum class Direction { kWrite, kRead };
  std::string path_of(const std::string& name, const char* ending) const {
    return directory_ + "/" + name + ending;
  }
  Status convert(Direction direction, const std::string& name, const std::string& contents,
                 const std::string& file) const;
  Status bring_back(const std::string& name);
  Status return_to_memory(LockedEpochs& locked, const std::string& name);
  Status write(const std::string& name);
  Status write_part(const EpochState& state, const std::string& held) const;
  Status publish(const std::string& name, const LockedEpochs& locked, const EpochState& written);

  const WriteEpochsCommand& options_;
  const std::string directory_;
  const RecordStore records_;
  const EpochStore epochs_;
  UniqueFd lock_;
  struct Failed {
    Clock::time_point try_at;
    std::string told;
  };
  std::map<std::string, Failed> failed_;  // by name
};

// Blocks on the lock, because the writer of the previous daemon may not have ended yet.
Status EpochWriter::prepare() {
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("create", directory_);
  }
  const std::string path = directory_ + "/lock";
  lock_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return system_failure("open", path);
  while (flock(lock_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return system_failure("lock", path);
  }
  return {};
}

// Runs `ppmr kept-directory` as a separate process, which reads the key and the file, as it does
// for suspended jobs.
Status EpochWriter::convert(Direction direction, const std::string& name,
                            const std::string& contents, const std::string& file) const {
  std::vector<std::string> argv = {
      "/proc/self/exe",   "kept-directory",  contents, file, "--name", "protected+" + name,
      "--key-file",       options_.key_file, "--uid",  "0",  "--gid",  "0",
      "--end-with-parent"};
  if (direction == Direction::kWrite) argv.emplace_back("--write");
  const auto done = run_command(argv, kFilePatience);
  if (!done) return failure(done.error());
  if (done->succeeded) return {};
  std::string text = done->text.empty() ? "ppmr kept-directory " + done->ending : done->text;
  while (text.ends_with('\n')) text.pop_back();
  return failure(EIO, text);
}

// ---- After a start -----------------------------------------------------------------------------

void EpochWriter::bring_back_all() {
  std::vector<std::string> names;
  const auto entries = list_directory(directory_);
  if (!entries) return say(entries.error().message);
  for (const auto& entry : *entries) {
    const fs::path& path = entry.path();
    const std::string name = path.stem();
    if (!is_protection_name(name)) continue;
    if (path.extension() == kComplete) names.push_back(name);
    std::error_code ignored;
    if (path.extension() == kPart) fs::remove(path, ignored);
  }
  for (const std::string& name : names) {
    if (Status done = bring_back(name); !done) say(done.error().message);
  }
}

// Holds the lock to its end, so the source of the tree and a takeover wait.
Status EpochWriter::bring_back(const std::string& name) {
  auto locked = epochs_.lock(name);
  if (!locked) return failure(locked.error());
  std::error_code ignored;
  fs::remove_all(locked->returning_directory(), ignored);
  locked->release_held();
  const std::string file = path_of(name, kComplete);
  const bool is_lost = !locked->exists() || locked->state().newest.number == 0;
  if (!is_lost) {
    // Names the file in on-disk.json, so that the file is removed with the epochs. Names no epoch:
    // the file may hold an older epoch than the memory, so write() replaces it.
    const auto known = locked->on_disk();
    return known && known->file == file ? Status{} : locked->note_on_disk({.file = file});
  }
  const Status returned = return_to_memory(*locked, name);
  fs::remove_all(locked->returning_directory(), ignored);
  if (returned) return {};
  const std::string why =
      fmt::format("the epoch of {} cannot be read: {}", name, returned.error().message);
  if (Status noted = locked->note_on_disk({.file = file, .error = why}); !noted) return noted;
  return failure(returned.error().errno_value, why);
}

Status EpochWriter::return_to_memory(LockedEpochs& locked, const std::string& name) {
  const std::string file = path_of(name, kComplete);
  const std::string returning = locked.returning_directory();
  if (Status read = convert(Direction::kRead, name, returning, file); !read) return read;
  const auto state = read_noted_state(returning);
  if (!state) return failure(state.error());
  const auto taken_over = find_taken_over(records_, name, state->peer, state->tree);
  if (!taken_over) return failure(taken_over.error());
  const auto here = locked.exists() ? std::optional(locked.state()) : std::nullopt;
  const uint64_t number = state->newest.number;
  if (Status noted = locked.note_on_disk({.file = file}); !noted) return noted;
  switch (judge_return(*state, here, !taken_over->empty())) {
    case Return::kNone:
      return {};
    case Return::kRemove:
      say(fmt::format("{} was taken over (migration {}): its epoch is removed", name, *taken_over));
      return here ? locked.remove_from_disk() : locked.discard();
    case Return::kToMemory:
      break;
  }
  const std::string epoch = locked.epoch_directory(number);
  std::error_code ignored;
  fs::remove_all(epoch, ignored);
  if (rename(returning.c_str(), epoch.c_str()) != 0) return system_failure("rename", returning);
  if (Status adopted = adopt_epoch(locked, name, number, options_.mountpoint); !adopted) {
    return adopted;
  }
  locked.note_contact();
  const Status noted = locked.note_on_disk(describe(file, *state));
  if (!noted) return noted;
  audit(state->audit_file, "epochs",
        {{"outcome", "returned"}, {"protected_as", name}, {"epoch", number}});
  say(fmt::format("epoch {} of {} is back in memory, from {}", number, name, file));
  return {};
}

// ---- While it runs -----------------------------------------------------------------------------

void EpochWriter::write_all() {
  const auto all = epochs_.list();
  if (!all) return say(all.error().message);
  for (const EpochState& state : *all) {
    const auto failed = failed_.find(state.name);
    const bool is_due = failed == failed_.end() || Clock::now() >= failed->second.try_at;
    if (state.mountpoint != options_.mountpoint || !is_due) continue;
    const Status done = write(state.name);
    if (done) {
      failed_.erase(state.name);
      continue;
    }
    Failed& now = failed_[state.name];
    now.try_at = Clock::now() + kAfterFailure;
    const std::string& why = done.error().message;
    if (std::exchange(now.told, why) != why) say(why);
  }
}

Status EpochWriter::write(const std::string& name) {
  EpochState state;
  std::string held;
  {
    auto locked = epochs_.lock(name);
    if (!locked) return failure(locked.error());
    if (!locked->exists()) return locked->discard();  // it was forgotten meanwhile
    state = locked->state();
    const auto takeover = takeover_state(records_, state);
    if (!takeover) return failure(takeover.error());
    const auto known = locked->on_disk();
    const bool has_moved = judge_source(*takeover) == SourceMay::kNotRun && !state.rolls_back;
    if (has_moved && known) return locked->remove_from_disk();
    if (!is_to_write(state, *takeover, known.value_or(EpochOnDisk()))) return {};
    // on-disk.json names the file before the file exists, so the file is removed with the epochs at
    // any moment.
    if (!known) {
      const Status noted = locked->note_on_disk({.file = path_of(name, kComplete)});
      if (!noted) return noted;
    }
    auto done = note_state_of(*locked, state.newest.number);
    auto holding = done ? locked->hold(state.newest.number) : failure(done.error());
    if (!holding) {
      note_failure(*locked, holding.error());
      return failure(holding.error());
    }
    held = std::move(*holding);
  }
  Status written = write_part(state, held);
  auto locked = epochs_.lock(name);
  if (!locked) return failure(locked.error());
  locked->release_held();
  if (written) written = publish(name, *locked, state);
  unlink(path_of(name, kPart).c_str());
  if (!written) note_failure(*locked, written.error());
  if (!locked->exists()) (void)locked->discard();  // locking has made the directory again
  return written;
}

Status EpochWriter::write_part(const EpochState& state, const std::string& held) const {
  const std::string part = path_of(state.name, kPart);
  unlink(part.c_str());
  struct statvfs space {};
  if (statvfs(directory_.c_str(), &space) != 0) {
    return system_failure("read the free space of", directory_);
  }
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  const uint64_t needed_bytes = state.newest.bytes + kSpareBytes;
  if (free_bytes < needed_bytes) {
    return failure(ENOSPC, fmt::format("epoch {} of {} needs {} MiB in {}, and {} MiB are free: "
                                       "make space; the target tries again every 10 s",
                                       state.newest.number, state.name, needed_bytes >> 20,
                                       directory_, free_bytes >> 20));
  }
  const Status written = convert(Direction::kWrite, state.name, held, part);
  if (written) return {};
  return failure(written.error().errno_value,
                 fmt::format("write epoch {} of {} to {}: {}", state.newest.number, state.name,
                             directory_, written.error().message));
}

// `part` is already synced. After the rename and the sync of the directory, this epoch survives a
// loss of the node's memory.
Status EpochWriter::publish(const std::string& name, const LockedEpochs& locked,
                            const EpochState& written) {
  const auto now = locked.exists() ? std::optional(locked.state()) : std::nullopt;
  std::optional<MigrationState> takeover;
  if (now) {
    const auto known = takeover_state(records_, *now);
    if (!known) return failure(known.error());
    takeover = *known;
  }
  if (!may_replace(written, now, takeover)) return {};
  const std::string file = path_of(name, kComplete);
  const std::string part = path_of(name, kPart);
  if (rename(part.c_str(), file.c_str()) != 0) return system_failure("rename", part);
  if (Status synced = sync_directory(directory_); !synced) return synced;
  return locked.note_on_disk(describe(file, written));
}

}  // namespace

int WriteEpochsCommand::run() const {
  ignore_sigpipe();
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return to_int(ExitCode::kFailure);  // the helper has ended already
  (void)setpriority(PRIO_PROCESS, 0, kNice);
  const auto fail = [](const Error& error) {
    say(error.message);
    return to_int(ExitCode::kFailure);
  };
  auto records = RecordStore::open(state_directory);
  if (!records) return fail(records.error());
  auto epochs = EpochStore::open();
  if (!epochs) return fail(epochs.error());
  EpochWriter writer(*this, std::move(*records), std::move(*epochs));
  if (Status prepared = writer.prepare(); !prepared) return fail(prepared.error());
  writer.bring_back_all();
  for (;;) {
    writer.write_all();
    std::this_thread::sleep_for(kLookInterval);
  }
}

}  // namespace ppmr
