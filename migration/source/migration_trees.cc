// The threads of the trees: each copies its tree while it runs, waits until all trees are copied,
// then dumps and seals it. Before the first tree is frozen, some steps are needed once for all
// trees. The first thread that reaches such a step takes it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/without_exceptions.h"
#include "migration/relay/migration_hook.h"
#include "migration/relay/moved_memory.h"
#include "migration/source/delay_meter.h"
#include "migration/source/migration.h"
#include "migration/source/pause.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/control_groups.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kSource;
constexpr milliseconds kLookInterval{250};  // at which a waiting thread sees an interruption

// Returns the tasks that their users have stopped (SIGSTOP, Ctrl-Z). After the freeze, such tasks
// cannot be told from the others.
std::vector<ProcessIdentity> stopped_tasks_of(pid_t root) {
  std::vector<ProcessIdentity> stopped;
  const auto tree = read_tree(root);
  if (!tree) return stopped;
  for (const ProcessStat& process : *tree) {
    if (process.state == 'T') stopped.push_back(process.identity());
  }
  return stopped;
}

}  // namespace

void Migration::dump(Tree& tree, size_t number) {
  Status done = in_slot([&] {
    plan_release_once();
    const Status released = released_after_rounds_.empty() ? release_rdma_once() : Status{};
    return released ? copy(tree, number) : released;
  });
  if (done) done = await_copied();
  if (done) done = prepare_freeze();
  if (done) done = in_slot([&] { return dump_and_seal(tree, number); });
  {
    MutexLock lock(mutex_);
    tree.is_sealed = done.has_value();
    tree.memory_has_moved = !done || !settings_.plan.may_run_before_memory();
    if (!done) note_failure_locked(tree, done.error());
  }
  changed_.notify_all();
  if (done && settings_.plan.may_run_before_memory()) finish_memory(tree, number);
  (void)without_exceptions([&]() -> Status {
    if (tree.dump) tree.dump->wait_for_end();
    if (done && settings_.plan.is_rehearsal) tree.goes_on_ns = realtime_ns();
    return {};
  });
}

Status Migration::in_slot(const std::function<Status()>& work) {
  slots_.acquire();
  const Status done = without_exceptions(work);
  slots_.release();
  return done;
}

// No tree is frozen while another one is still copied.
Status Migration::await_copied() {
  MutexLock lock(mutex_);
  ++copied_;
  changed_.notify_all();
  while (copied_ < trees_.size()) {
    if (first_failure_) return failure(*first_failure_);
    if (stop_ || has_given_up_) return failure(EINTR, "interrupted");
    if (changed_.wait_for(mutex_, kLookInterval) == std::cv_status::no_timeout) continue;
    if (Status open = check_not_over(); !open) return open;
  }
  return {};
}

void Migration::note_failure_locked(const Tree& tree, const Error& error) {
  if (first_failure_) return;
  first_failure_ = Error{error.errno_value, fmt::format("process {} ({}): {}", tree.plan.root.pid,
                                                        tree.plan.name, error.message)};
}

// An error before the decision aborts the migration. After the decision, the source's daemon may
// only have been silent for a while: then the memory follows. Otherwise the target reports the
// loss.
void Migration::finish_memory(Tree& tree, size_t number) {
  const auto memory = without_exceptions([&] { return tree.dump->finish_memory(); });
  if (!memory) {
    {
      MutexLock lock(mutex_);
      note_failure_locked(tree, memory.error());
    }
    (void)without_exceptions([&]() -> Status {
      const auto decided = await_decision();
      if (decided && decided->state() == MigrationState::kCommitted) {
        ppmr::await_memory_moved(*decided, decided->trees[number], settings_.hold_limit);
      }
      return {};
    });
  }
  {
    MutexLock lock(mutex_);
    tree.memory_has_moved = true;
    if (memory) {
      tree.sealed.bytes += memory->bytes;
      tree.sealed.files += memory->files;
    }
  }
  changed_.notify_all();
}

// Returns the record when it is committed or aborted, or when the coordinator has given up.
Result<OwnershipRecord> Migration::await_decision() const {
  auto record = store_.read(id_, kRole);
  while (record && record->state() < MigrationState::kCommitted && !has_given_up_) {
    record = store_.wait(id_, kRole, record->version, kLookInterval);
  }
  return record;
}

// After its release of RDMA, a process waits without its devices for the end of the move. So the
// rounds copy such processes before the release, if all of them show afterwards what their devices
// have written.
void Migration::plan_release_once() {
  std::call_once(plan_of_release_began_, [this] {
    if (!settings_.plan.is_live) return;
    if (const auto users = rdma_users_that_show_writes(roots())) released_after_rounds_ = *users;
  });
}

Status Migration::release_rdma_once() {
  std::call_once(release_began_, [this] {
    released_ = without_exceptions([this]() -> Status {
      asked_to_release_ = true;  // even after an error some processes may have released
      const auto asked = release_rdma(roots(), settings_.release_timeout);
      if (!asked) return failure(asked.error());
      asked_to_release_ = *asked > 0;
      if (*asked > 0) report_.event({{"event", "rdma-released"}, {"processes", *asked}});
      return {};
    });
  });
  return released_;
}

Status Migration::prepare_freeze() {
  std::call_once(hook_began_, [this] {
    hook_ended_ = without_exceptions([this]() -> Status {
      for (;;) {
        const auto excluded = exclude_pause(store_.path_of(id_, kRole));
        if (!excluded) return failure(excluded.error());
        if (*excluded) break;
        if (stop_ || has_given_up_) return failure(EINTR, "interrupted");
        if (Status open = check_not_over(); !open) return open;
        std::this_thread::sleep_for(kLookInterval);
      }
      // The release comes before the hook, which may take away the network that the processes need
      // for the release.
      if (Status released = release_rdma_once(); !released) return released;
      return run_hook(settings_.hooks, "before-freeze",
                      {id_, roots(), settings_.endpoint.value("target", ""), ""});
    });
  });
  return hook_ended_;
}

Status Migration::copy(Tree& tree, size_t number) {
  const auto now = store_.read(id_, kRole);
  if (!now) return failure(now.error());
  // The pid may have been reused while the tree waited for its turn.
  const ProcessIdentity root{now->trees[number].root, now->trees[number].root_start_time};
  if (Status same = check_identity(root, now->boot_id); !same) return same;
  if (Status free = check_thawed(root.pid); !free) return free;
  SourceDriver driver(store_, id_);
  const auto begun = driver.take(source_event::DumpBegins{number, stopped_tasks_of(root.pid)});
  if (!begun) return failure(begun.error());
  const OwnershipRecord* record = &begun->record;
  // There are no rounds if the processes have released RDMA before the copy (asked_to_release_):
  // they wait for the end of the move, which rounds would delay.
  const auto limits =
      settings_.plan.is_live && !asked_to_release_ ? std::optional(settings_.live) : std::nullopt;
  // The names of the tree's checkpoints, for programs that show progress.
  const json places = {{"checkpoint", record->trees[number].checkpoint},
                       {"memory", memory_checkpoint(record->plan, record->trees[number])}};
  const auto report_phase = [&, number, places](const char* phase) {
    json event = places;
    event["event"] = phase;
    report_.event(std::move(event), number);
  };
  if (limits) report_phase("copying");
  const auto on_round_begins = [&, number](unsigned round, uint64_t bytes) {
    report_.round_begins(number, round, bytes);
  };
  const auto on_round = [&, number](unsigned round, uint64_t bytes) {
    tree.rounds.push_back({realtime_ns(), bytes});
    report_.event({{"event", "copied"}, {"round", round}, {"bytes", bytes}}, number);
  };
  const auto on_files_round = [&, number](uint64_t bytes) {
    if (bytes > 0) report_.event({{"event", "files_copied"}, {"bytes", bytes}}, number);
  };
  const auto on_warning = [&, number](const std::string& sentence) {
    report_.warning(sentence, number);
  };
  tree.dump = std::make_unique<TreeDump>(
      store_, TreeDumpOptions{.criu = settings_.criu,
                              .mount = settings_.mount,
                              .id = id_,
                              .tree = number,
                              .record = record->trees[number],
                              .criu_options = settings_.criu_options,
                              .plan = settings_.plan,
                              .live_limits = limits,
                              .rdma_users = released_after_rounds_,
                              .on_round_begins = on_round_begins,
                              .on_round = on_round,
                              .on_freeze = [report_phase] { report_phase("dumping"); },
                              .on_files_round = on_files_round,
                              .on_warning = on_warning,
                              .seal_patience = settings_.hold_limit});
  if (!limits) return tree.dump->copy();
  DelayMeter meter(record->trees[number].root);
  const Status copied = tree.dump->copy();
  report_.event({{"event", "delayed"}, {"waited_shares", meter.finish()}}, number);
  return copied;
}

Status Migration::dump_and_seal(Tree& tree, size_t number) {
  SourceDriver driver(store_, id_);
  auto sealed = tree.dump->dump_and_seal();
  if (!sealed) return failure(sealed.error());
  tree.sealed = *sealed;
  const source_event::Sealed event{
      .tree = number,
      .freeze_began_ns = read_freeze_began_ns(tree.dump->work_directory()),
      .rounds = tree.rounds};
  if (Status noted = note_sealed(driver, event); !noted) return noted;
  report_.event({{"event", "sealed"}, {"bytes", sealed->bytes}}, number);
  return {};
}

// The hook stops the tree while the memory travels. If a tree has no memory to send, its seal may
// come before the hook has stopped it.
Status Migration::note_sealed(SourceDriver& driver, const source_event::Sealed& event) {
  const auto deadline = Clock::now() + settings_.hold_limit;
  for (;;) {
    const auto noted = driver.take(event);
    if (noted) return {};
    if (noted.error().errno_value != EAGAIN || Clock::now() > deadline) {
      return failure(noted.error());
    }
    const auto now = store_.read(id_, kRole);
    if (!now) return failure(now.error());
    if (now->trees[event.tree].phase < TreePhase::kStopped) {
      (void)store_.wait(id_, kRole, now->version, kLookInterval);
    }
  }
}

}  // namespace ppmr
