// If the other node is alive after all, the process runs twice. So a fence command proves that the
// other node is dead, or the operator types its name. To save time, the restore begins before that.
// It holds the process until the fence command has succeeded or the operator has typed the name.
#include "cli/takeover_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/descriptor_limit.h"
#include "base/exit_code.h"
#include "base/json_text.h"
#include "cli/interruption.h"
#include "cli/lost_node.h"
#include "cli/option_helpers.h"
#include "cli/screen/one_line.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "migration/relay/audit_events.h"
#include "migration/target/takeover.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kTarget;
constexpr milliseconds kLookInterval{250};
constexpr milliseconds kRestorePatience{120'000};
constexpr milliseconds kSignalInterval{200};

std::string age_now(const SealedEpoch& epoch) { return age_text(epoch, realtime_ns()); }

int64_t age_ms(const SealedEpoch& epoch) { return age_of(epoch, realtime_ns()).count(); }

int64_t age_uncertainty_ms(const SealedEpoch& epoch) {
  const int64_t ns = epoch.clock_uncertainty_ns;
  return ns < 0 ? -1 : (ns + 999'999) / 1'000'000;
}

// Returns "; kept as well: 11 (38 s old), 10 (68 s old)"; empty without older epochs.
std::string older_epochs(const EpochState& state) {
  std::string text;
  for (const SealedEpoch& epoch : state.older) {
    text += fmt::format("{}{} ({})", text.empty() ? "; kept as well: " : ", ", epoch.number,
                        age_now(epoch));
  }
  return text;
}

// Returns a text about the epoch on the disk, for example "; on disk: epoch 11, 38 s old".
std::string on_disk_text(const EpochOnDisk& on_disk, const SealedEpoch& newest) {
  std::string text;
  if (on_disk.number == 0) {
    text = "not on disk yet";
  } else if (on_disk.number == newest.number && on_disk.frozen_ns == newest.frozen_ns) {
    text = "kept on disk";
  } else {
    const int64_t age_ns = realtime_ns() - on_disk.frozen_ns;
    text = fmt::format("on disk: epoch {}, {} old", on_disk.number,
                       format_time(milliseconds(age_ns / 1'000'000)));
  }
  return "; " + text + (on_disk.error.empty() ? "" : " (" + on_disk.error + ")");
}

class Takeover {
 public:
  Takeover(const TakeoverCommand& command, RecordStore records, EpochStore epochs)
      : command_(command), records_(std::move(records)), epochs_(std::move(epochs)) {}

  CommandResult<void> list() const;
  CommandResult<void> discard() const;
  CommandResult<void> take_over();
  CommandResult<void> copy();

 private:
  json describe(const EpochState& state) const;
  json describe_unreadable(const std::string& name) const;
  void show_changed(const std::vector<ChangedFile>& files) const;
  CommandResult<void> await_silence();
  CommandResult<void> fence_or_ask(const EpochState& state, const SealedEpoch& epoch) const;
  CommandResult<void> check_first(const EpochState& state) const;
  Result<OwnershipRecord> await(const std::string& id, TreePhase phase) const;
  CommandResult<void> run_here();
  CommandResult<OwnershipRecord> decide(const EpochState& state, const SealedEpoch& epoch,
                                        const std::string& id);
  std::string hindrance() const;
  void say(const std::string& sentence) const {
    if (!command_.json) print_to(stderr, "{}\n", sentence);
  }

  const TakeoverCommand& command_;
  const RecordStore records_;
  const EpochStore epochs_;
};

json Takeover::describe(const EpochState& state) const {
  const auto takeover = takeover_state(records_, state);
  const auto contact_ns = epochs_.contact_ns(state.name);
  auto kept = json::array();
  for (const SealedEpoch& epoch : kept_epochs(state)) {
    kept.push_back({{"epoch", epoch.number}, {"age_ms", age_ms(epoch)}});
  }
  json what = {{"name", state.name},
               {"copy", state.is_copy},
               {"source", node_name(state.peer)},
               {"pid", state.tree.root},
               {"program", state.tree.program},
               {"unit", state.manager.unit.name},
               {"container", state.manager.container.name},
               {"epoch", state.newest.number},
               {"age_ms", age_ms(state.newest)},
               {"age_uncertainty_ms", age_uncertainty_ms(state.newest)},
               {"kept_epochs", std::move(kept)},
               {"pause_ms", state.newest.pause_ms},
               {"bytes", state.newest.bytes},
               {"silent_ms", contact_ns ? (realtime_ns() - *contact_ns) / 1'000'000 : -1},
               {"first_partner", state.first_partner},
               {"takeover", state.takeover},
               {"state", !takeover   ? "unknown"
                         : *takeover ? to_string(**takeover)
                                     : "kept"}};
  if (!takeover) what["error"] = takeover.error().message;
  if (const auto on_disk = epochs_.on_disk(state.name)) {
    what["on_disk"] = to_json(*on_disk);
    if (on_disk->number > 0) {
      what["on_disk"]["age_ms"] = (realtime_ns() - on_disk->frozen_ns) / 1'000'000;
    }
  }
  return what;
}

json Takeover::describe_unreadable(const std::string& name) const {
  const auto on_disk = epochs_.on_disk(name).value_or(EpochOnDisk());
  return {{"name", name}, {"state", "unreadable"}, {"on_disk", to_json(on_disk)}};
}

CommandResult<void> Takeover::list() const {
  const auto all = epochs_.list();
  if (!all) return command_failure(ExitCode::kFailure, all.error().message);
  const std::vector<std::string> unreadable = epochs_.unreadable();
  if (command_.json) {
    for (const EpochState& state : *all) print_whole(stdout, "{}\n", json_text(describe(state)));
    for (const std::string& name : unreadable) {
      print_whole(stdout, "{}\n", json_text(describe_unreadable(name)));
    }
    return {};
  }
  for (const std::string& name : unreadable) {
    print_to(stdout, "{}: {}\n", name, epochs_.on_disk(name).value_or(EpochOnDisk()).error);
  }
  if (all->empty() && unreadable.empty()) {
    print_to(stdout,
             "this node keeps no protected process; ppmr protect, at another node, sends "
             "one here\n");
    return {};
  }
  for (const EpochState& state : *all) {
    const json what = describe(state);
    const std::string source = fmt::format("{} of {}", state.tree.program, node_name(state.peer));
    if (what.contains("error")) {
      print_to(stdout, "{}: {}: {}\n", state.name, source, what.at("error").get<std::string>());
    } else if (what.at("state") != "kept") {
      print_to(stdout, "{}: {}, {}: migration {} is {}\n", state.name, source,
               state.is_copy ? "a copy" : "taken over", state.takeover,
               what.at("state").get<std::string>());
    } else if (state.newest.number == 0) {
      print_to(stdout, "{}: {}, the first epoch has not arrived\n", state.name, source);
    } else {
      const auto on_disk = epochs_.on_disk(state.name);
      print_to(stdout, "{}: {}, epoch {} is {}, {}{}; source silent for {}{}{}\n", state.name,
               source, state.newest.number, age_now(state.newest), format_size(state.newest.bytes),
               on_disk ? on_disk_text(*on_disk, state.newest) : "",
               format_time(milliseconds(what.at("silent_ms").get<int64_t>())), older_epochs(state),
               state.first_partner.empty()
                   ? ""
                   : fmt::format("; {} takes it over first", state.first_partner));
    }
  }
  return {};
}

CommandResult<void> Takeover::discard() const {
  auto known = epochs_.read(command_.name);
  const bool is_known = known || epochs_.on_disk(command_.name);  // on disk, even if unreadable
  if (!is_known) return command_failure(ExitCode::kUsage, known.error().message);
  auto locked = epochs_.lock(command_.name);
  if (!locked) return command_failure(ExitCode::kFailure, locked.error().message);
  const auto takeover = takeover_state(records_, locked->state());
  if (!takeover && !has_lost_record(records_, locked->state())) {
    return command_failure(ExitCode::kFailure, takeover.error().message);
  }
  if (takeover && judge_source(*takeover) == SourceMay::kGoOnAfterAbort) {
    return command_failure(ExitCode::kUsage,
                           fmt::format("discard the epochs of {}: migration {} is taking it "
                                       "over, and needs them",
                                       command_.name, locked->state().takeover));
  }
  if (Status gone = locked->discard(); !gone) {
    return command_failure(ExitCode::kFailure, gone.error().message);
  }
  audit(known ? known->audit_file : "", "epochs",
        {{"outcome", "discarded"}, {"protected_as", command_.name}, {"by_uid", getuid()}});
  if (command_.json) {
    print_whole(stdout, "{}\n", json_text({{"ok", true}, {"name", command_.name}}));
  } else {
    print_to(stdout, "{}: its epochs are gone\n", command_.name);
  }
  return {};
}

CommandResult<void> Takeover::await_silence() {
  if (!command_.dead_after) return {};
  Interruption interruption;
  say(
      fmt::format("watching {}: it is taken over when its source has been silent for {} and the "
                  "fence says that it is dead",
                  command_.name, format_time(*command_.dead_after)));
  std::string told;
  int64_t seen_ns = 0;
  auto silent_since = Clock::now();  // monotonic: the time of day may be set
  for (;;) {
    interruption.poll_signals(kSignalInterval);
    if (interruption.flag()) {
      return command_failure(ExitCode::kInterrupted, "interrupted: nothing was changed");
    }
    const auto contact_ns = epochs_.contact_ns(command_.name);
    if (!contact_ns) {
      return command_failure(ExitCode::kFailure,
                             command_.name +
                                 " is not protected any more: the process has ended, "
                                 "or its epochs were discarded");
    }
    if (std::exchange(seen_ns, *contact_ns) != *contact_ns) silent_since = Clock::now();
    if (Clock::now() - silent_since < *command_.dead_after) continue;
    const Status dead = run_fence(command_.fence);
    if (dead) return {};
    if (std::exchange(told, dead.error().message) != dead.error().message) {
      say(fmt::format("the source is silent, but {}", dead.error().message));
    }
  }
}

CommandResult<void> Takeover::fence_or_ask(const EpochState& state,
                                           const SealedEpoch& epoch) const {
  if (command_.copy) return {};        // the source goes on, so it need not be dead
  if (command_.dead_after) return {};  // await_silence() has run the fence command
  if (command_.fence.empty()) {
    say(
        fmt::format("{} ({}) goes on here from epoch {}, {}; what it did since is lost. If its "
                    "node is alive, the process runs twice until that node reaches this one, and "
                    "is then ended there.",
                    state.name, state.tree.program, epoch.number, age_now(epoch)));
    if (Status sure = confirm_lost(node_name(state.peer)); !sure) {
      return command_failure(ExitCode::kFailure, sure.error().message);
    }
    return {};
  }
  if (Status dead = run_fence(command_.fence); !dead) {
    return command_failure(ExitCode::kFailure, dead.error().message);
  }
  return {};
}

// Waits until all trees have reached the phase, and returns the record. Errors: ECANCELED if the
// takeover was aborted; ECHILD if processes are lost; ETIMEDOUT.
Result<OwnershipRecord> Takeover::await(const std::string& id, TreePhase phase) const {
  const auto deadline = Clock::now() + kRestorePatience;
  for (uint64_t version = 0;;) {
    auto record = records_.wait(id, kRole, version, kLookInterval);
    if (!record) return record;
    version = record->version;
    records_.note_contact(id, kRole);
    if (record->state() == MigrationState::kAborted) return failure(ECANCELED, record->error);
    if (record->has_losses()) return failure(ECHILD, record->losses());
    if (record->all_trees(phase)) return record;
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, fmt::format("the process was not restored within {}",
                                            format_time(kRestorePatience)));
    }
  }
}

// Returns a sentence about a copy that runs here; empty: no copy runs here. A copy may occupy pids
// or addresses that the process needs.
std::string Takeover::hindrance() const {
  if (command_.copy) return {};
  const pid_t pid = find_running_copy(records_, epochs_, command_.name);
  if (pid == 0) return {};
  return fmt::format(
      ". A copy of {} runs here as pid {}, with the pids and the addresses of its original: end "
      "that copy, then try again",
      command_.name, pid);
}

CommandResult<OwnershipRecord> Takeover::decide(const EpochState& state, const SealedEpoch& epoch,
                                                const std::string& id) {
  const auto give_up = [&](const CommandError& why) {
    abandon_takeover(records_, id, why.message);
    return tl::unexpected(why);
  };
  if (const auto dead = fence_or_ask(state, epoch); !dead) return give_up(dead.error());
  const auto failed = [&](const Error& error) {
    const std::string kept =
        command_.copy ? "; its original and its epochs are unchanged" : ", and its epoch is kept";
    return CommandError{
        ExitCode::kRestoreFailed,
        fmt::format("{} does not run here{}: {}{}", state.name, kept, error.message, hindrance())};
  };
  if (const auto ready = await(id, TreePhase::kReady); !ready) {
    return give_up(failed(ready.error()));
  }
  if (const auto decided = decide_takeover(records_, epochs_, state.name, id, command_.cuts_files);
      !decided) {
    return give_up(failed(decided.error()));
  }
  auto runs = await(id, TreePhase::kRunning);
  if (runs) return std::move(*runs);
  return command_failure(ExitCode::kPagesLost, runs.error().message);
}

CommandResult<void> Takeover::check_first(const EpochState& state) const {
  const bool is_alone = command_.dead_after.has_value();
  const Status may = check_precedence(state, is_alone, command_.instead_of);
  if (may) return {};
  return command_failure(ExitCode::kUsage, may.error().message);
}

CommandResult<void> Takeover::take_over() {
  auto known = epochs_.read(command_.name);
  if (!known) return command_failure(ExitCode::kUsage, known.error().message);
  if (command_.epoch > 0) {
    const auto kept = find_epoch(*known, command_.epoch);
    if (!kept) return command_failure(ExitCode::kUsage, "--epoch: " + kept.error().message);
  }
  if (known->rolls_back && !command_.rolls_back) {
    return command_failure(ExitCode::kUsage,
                           fmt::format("{} is a node of a job: its home rolls all nodes back "
                                       "together (ppmr job status)",
                                       command_.name));
  }
  if (Status ends = check_has_source(*known); !ends) {
    return command_failure(ExitCode::kUsage, ends.error().message);
  }
  if (auto first = check_first(*known); !first) return first;
  if (auto silent = await_silence(); !silent) return silent;
  // This node may have become the second partner while it waited.
  known = epochs_.read(command_.name);
  if (!known) return command_failure(ExitCode::kFailure, known.error().message);
  if (auto first = check_first(*known); !first) return first;
  const std::string& container = known->manager.container.name;
  if (command_.cuts_files && !container.empty()) {
    return command_failure(
        ExitCode::kUsage,
        fmt::format("--truncate: the files of the container {} are not listed in its epochs; take "
                    "it over without --truncate",
                    container));
  }
  return run_here();
}

CommandResult<void> Takeover::copy() {
  const auto known = epochs_.read(command_.name);
  if (!known) return command_failure(ExitCode::kUsage, known.error().message);
  auto runs = run_here();
  // The epoch of a copy that does not run has no use. The original keeps its own epochs.
  if (!runs) discard_abandoned_copies(records_, epochs_);
  return runs;
}

CommandResult<void> Takeover::run_here() {
  const auto began = Clock::now();
  const auto begun = command_.copy
                         ? begin_copy(records_, epochs_, command_.name, command_.epoch)
                         : begin_takeover(records_, epochs_, command_.name, command_.epoch);
  if (!begun) {
    return command_failure(ExitCode::kFailure, begun.error().message + hindrance());
  }
  const TreeRecord& taken = begun->trees.front();
  const auto state = epochs_.read(taken.protected_as);
  const auto epoch =
      state ? find_epoch(*state, taken.epoch) : Result<SealedEpoch>(failure(state.error()));
  if (!epoch) {
    abandon_takeover(records_, begun->id, epoch.error().message);
    return command_failure(ExitCode::kFailure, epoch.error().message);
  }
  const auto changed = changed_files(*state, epoch->number).value_or(std::vector<ChangedFile>());
  const auto runs = decide(*state, *epoch, begun->id);
  if (!runs) return tl::unexpected(runs.error());
  const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - began);
  const TreeRecord& tree = runs->trees.front();
  const int64_t lost_ms = (tree.running_ns - epoch->frozen_ns) / 1'000'000;
  const int64_t restore_ms = (tree.held_ns - tree.restore_began_ns) / 1'000'000;
  audit_migration(*runs, command_.copy ? "copied" : "taken-over",
                  {{"protected_as", taken.protected_as},
                   {"epoch", tree.epoch},
                   {"fence", command_.fence},
                   {"by_uid", getuid()}});
  if (command_.json) {
    auto files = json::array();
    for (const ChangedFile& file : changed) {
      files.push_back({{"path", file.noted.path},
                       {"epoch_bytes", file.noted.size_bytes},
                       {"bytes", file.now_bytes},
                       {"was_cut", command_.cuts_files && file.can_be_cut}});
    }
    print_whole(stdout, "{}\n",
                json_text({{"ok", true},
                           {"name", taken.protected_as},
                           {"copy", command_.copy},
                           {"changed_files", files},
                           {"migration", runs->id},
                           {"pid", tree.tasks.empty() ? tree.root : tree.tasks.front().pid},
                           {"epoch", tree.epoch},
                           {"took_ms", took.count()},
                           {"restore_ms", restore_ms},
                           {"lost_ms", lost_ms}}));
    return {};
  }
  if (command_.copy) {
    print_to(
        stdout,
        "a copy of {0} runs here: pid {1}, after {2}, from epoch {3}; its source goes on. Both "
        "write the files that it had open. As long as the copy runs here, this partner cannot "
        "take {0} over: end the copy first\n",
        command_.name, tree.tasks.empty() ? tree.root : tree.tasks.front().pid, format_time(took),
        tree.epoch);
    return {};
  }
  print_to(stdout,
           "{} runs here: pid {}, after {}, of which its restore took {}. What it did in its last "
           "{} is lost\n",
           command_.name, tree.tasks.empty() ? tree.root : tree.tasks.front().pid,
           format_time(took), format_time(milliseconds(std::max<int64_t>(restore_ms, 0))),
           format_time(milliseconds(std::max<int64_t>(lost_ms, 0))));
  show_changed(changed);
  return {};
}

void Takeover::show_changed(const std::vector<ChangedFile>& files) const {
  constexpr size_t kShownMax = 10;
  for (size_t i = 0; i < files.size() && i < kShownMax; ++i) {
    const ChangedFile& file = files[i];
    const bool was_cut = command_.cuts_files && file.can_be_cut;
    if (file.now_bytes == file.noted.size_bytes) {
      print_to(stdout, "  {}: written since the epoch, {} bytes as before; it stays as it is\n",
               one_line(file.noted.path), file.now_bytes);
      continue;
    }
    print_to(stdout, "  {}: {} bytes in the epoch, {} since then{}\n", one_line(file.noted.path),
             file.noted.size_bytes, file.now_bytes,
             was_cut           ? "; cut back to the epoch"
             : file.can_be_cut ? "; it stays (--truncate cuts it back)"
                               : "; it stays as it is");
  }
  if (files.size() > kShownMax) {
    print_to(stdout, "  and {} more files have changed\n", files.size() - kShownMax);
  }
  if (files.size() == kChangedFilesMax) {
    print_to(stdout, "  there may be more: ppmr notes at most {} changed files{}\n", files.size(),
             command_.cuts_files ? ", and cuts no other file" : "");
  }
}

}  // namespace

int TakeoverCommand::run() const {
  ignore_sigpipe();
  raise_descriptor_limit();  // ending a failed restore needs one for each task
  const auto fail = [&](const CommandError& error) { return report("takeover", error, json); };
  auto records = RecordStore::open(state_directory);
  if (!records) return fail({ExitCode::kFailure, records.error().message});
  auto epochs = EpochStore::open();
  if (!epochs) return fail({ExitCode::kFailure, epochs.error().message});
  if (!discard) discard_abandoned_copies(*records, *epochs);
  Takeover takeover(*this, std::move(*records), std::move(*epochs));
  const auto done = name.empty() ? takeover.list()
                    : discard    ? takeover.discard()
                    : copy       ? takeover.copy()
                                 : takeover.take_over();
  return done ? to_int(ExitCode::kSuccess) : fail(done.error());
}

void add_takeover_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand(
      "takeover",
      "At the partner: list the protected processes that this node keeps, or let one run here "
      "because its node is lost");
  auto command = make_command<TakeoverCommand>(sub, exit_code);
  auto* name = sub.add_option("NAME", command->name, "the protected process; without it: list all");
  auto* discard =
      sub.add_flag("--discard", command->discard, "forget its epochs instead")->needs(name);
  auto* fence =
      sub.add_option("--fence", command->fence,
                     "a command that ends with 0 if the other node is certainly dead; without it "
                     "you type the name of that node")
          ->type_name("COMMAND")
          ->needs(name)
          ->excludes(discard);
  sub.add_option_function<std::string>(
         "--dead-after",
         [command](const std::string& text) {
           const auto time = parse_time(text);
           if (!time) throw CLI::ValidationError("--dead-after", time.error().message);
           command->dead_after = *time;
         },
         "wait, and take over when the other node has been silent for so long and the fence says "
         "that it is dead")
      ->type_name("SECONDS")
      ->needs(fence);
  auto* copy = sub.add_flag("--copy", command->copy,
                            "let a copy run here from its epoch, beside its source, which goes on")
                   ->needs(name)
                   ->excludes(discard)
                   ->excludes(fence);
  sub.add_option("--instead-of", command->instead_of,
                 "the partner that takes over before this one: you say that it does not, because "
                 "it is switched off or has discarded its epochs")
      ->type_name("NAME")
      ->needs(name)
      ->excludes(discard)
      ->excludes(copy);
  sub.add_flag("--truncate", command->cuts_files,
               "cut files to which the process only appends back to what they were in the epoch")
      ->needs(name)
      ->excludes(discard)
      ->excludes(copy);
  sub.add_option("--epoch", command->epoch,
                 "go on from this epoch; default: the newest (protect --keep has older ones kept)")
      ->check(CLI::Range(uint64_t{1}, std::numeric_limits<uint64_t>::max()))
      ->type_name("NUMBER")
      ->needs(name)
      ->excludes(discard);
  sub.add_option("--state-dir", command->state_directory, "directory for the records of migrations")
      ->capture_default_str();
  sub.add_flag("--roll-back", command->rolls_back)->needs(fence)->group("");  // not in --help
  sub.add_flag("--json", command->json, "print JSON");
}

}  // namespace ppmr
