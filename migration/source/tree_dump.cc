#include "migration/source/tree_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/relay/criu_relay.h"
#include "migration/relay/migration_hook.h"
#include "migration/source/changed_limits.h"
#include "migration/source/frozen_work.h"
#include "migration/source/pause.h"
#include "processes/carried/carried_state.h"
#include "processes/carried/inherited_attributes.h"
#include "processes/control_groups.h"
#include "processes/frozen_tasks.h"
#include "processes/proc_files.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/criu_options.h"
#include "restart_loader/criu/files_apart.h"
#include "restart_loader/criu/lazy_dump.h"
#include "restart_loader/criu/memory_apart.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kSource;
constexpr const char* kLog = "dump.log";
constexpr milliseconds kPollInterval{250};
constexpr milliseconds kPauseInterval{50};
// What a tree writes in this time is not worth a round of its own.
constexpr milliseconds kShortWait{50};
// If CRIU still runs this long after the decision, it may be blocked on a mount whose daemon is
// stopped.
constexpr milliseconds kEndPatience{5000};
// Spare links, for processes and shared memory that a tree makes before it is frozen. Creating a
// link takes 4 us.
constexpr size_t kSpareLinks = 32;

// Returns whether this error of a round leaves the process as it was, so that a move without rounds
// is still possible.
bool prevents_only_rounds(int error) {
  return error == EOPNOTSUPP || error == EPERM || error == EBUSY || error == ETIMEDOUT ||
         error == ENOTTY || error == ENOSYS;
}

}  // namespace

TreeDump::TreeDump(const RecordStore& store, TreeDumpOptions options)
    : store_(store), options_(std::move(options)) {
  live_.expect_release_of(options_.rdma_users);
}

TreeDump::~TreeDump() { wait_for_end(); }

Status TreeDump::make_directories() {
  auto work = store_.make_work_directory(options_.id, kRole, options_.tree);
  if (!work) return failure(work.error());
  work_ = *work;
  if (Status alive = check_daemon(); !alive) return alive;
  const std::string top = options_.mount.mountpoint + "/" + options_.record.checkpoint;
  if (mkdir(top.c_str(), 0700) != 0) return system_failure("create the checkpoint", top);
  top_ = top;
  if (Status deferred = defer_errors(options_.mount, options_.record.checkpoint); !deferred) {
    return deferred;
  }
  if (!options_.plan.moves_memory_apart()) return {};
  const std::string of_record = store_.path_of(options_.id, kRole);
  PaceFiles pace = pace_files(of_record);
  pace.pause = pause_file(of_record);
  auto memory = MemoryFile::create({.mount = options_.mount,
                                    .checkpoint = memory_name(),
                                    .work = work_,
                                    .pace = std::move(pace)});
  if (!memory) return failure(memory.error());
  memory_.emplace(std::move(*memory));
  return {};
}

// Checks that the daemon answers, because access to a mount whose daemon is stopped would block.
Status TreeDump::check_daemon() const {
  auto alive = ask(options_.mount, to_request(request::Status{}));
  if (!alive) return failure(EIO, alive.error().message);
  return {};
}

void TreeDump::remove_checkpoint() {
  if (top_.empty() || !check_daemon()) return;
  std::error_code ignored;  // a failed session has removed them
  std::filesystem::remove_all(top_, ignored);
  if (files_) files_->remove_names();
  if (!options_.plan.moves_memory_apart()) return;
  if (memory_) memory_->close();
  std::filesystem::remove(options_.mount.mountpoint + "/" + memory_name(), ignored);
}

// Writes the list of the file systems that CRIU, which already waits, must leave out.
Status TreeDump::find_files() {
  auto files = FileParts::open({.mount = options_.mount,
                                .checkpoint = options_.record.checkpoint,
                                .seal_patience = options_.seal_patience,
                                .pace = pace_files(store_.path_of(options_.id, kRole)),
                                .max_time = options_.live_limits.value_or(LiveLimits()).max_time,
                                .go_on = [this] { return check_not_over(); },
                                .await_resumed = [this] { return await_resumed(); },
                                .on_round = options_.on_files_round},
                               options_.record.root);
  if (!files) return failure(files.error());
  if (files->is_empty()) return {};
  const std::string path = work_ + "/" + kFilesApart;
  if (!(std::ofstream(path) << files->list_of_devices() << std::flush)) {
    return system_failure("write", path);
  }
  files_.emplace(std::move(*files));
  return {};
}

// Sends what has changed, and writes the list of shared memory. CRIU's library reads the list when
// CRIU comes to shared memory.
Status TreeDump::catch_up_files() {
  if (!files_) return {};
  if (Status sent = files_->catch_up(options_.record.root); !sent) return sent;
  const std::string path = work_ + "/" + kMemoryApart;
  if (std::ofstream(path) << files_->list_of_inodes() << std::flush) return {};
  return system_failure("write", path);
}

Status TreeDump::check_not_over() const {
  const auto record = store_.read(options_.id, kRole);
  if (record && is_over(record->state())) return failure(ECANCELED, record->error);
  return {};
}

Status TreeDump::await_resumed() const {
  const std::string directory = store_.path_of(options_.id, kRole);
  while (pause_began_ns(directory) > 0) {
    if (Status open = check_not_over(); !open) return open;
    std::this_thread::sleep_for(kPauseInterval);
  }
  return {};
}

// Copies files in every mode: even a tree that stands still while its memory is sent need not wait
// for its files.
Status TreeDump::copy_files() { return files_ ? files_->copy(options_.record.root) : Status{}; }

// Copies memory in rounds while the tree runs. If that is not possible, all memory is sent while
// the tree is frozen.
Status TreeDump::copy_live() {
  if (!options_.live_limits) return {};
  frozen_work_ = frozen_work_of(options_.record.root);
  return or_send_frozen(copy_rounds());
}

Status TreeDump::or_send_frozen(const Status& copied) {
  if (copied || !prevents_only_rounds(copied.error().errno_value)) return copied;
  if (Status allowed = may_send_frozen(copied.error().message); !allowed) return allowed;
  live_.forget();
  rounds_.clear();
  options_.on_warning((options_.plan.may_run_before_memory()
                           ? "all of its memory follows, nothing is copied before: "
                           : "its memory is sent while it is frozen, not while it runs: ") +
                      copied.error().message);
  return {};
}

// Checks whether the user allows a long freeze. With --on-timeout cancel or post-copy, the user
// does not.
Status TreeDump::may_send_frozen(const std::string& why) const {
  if (!options_.live_limits || options_.live_limits->on_timeout == OnTimeout::kFreeze) return {};
  if (options_.plan.may_run_before_memory()) return {};
  return failure(ETIME,
                 fmt::format("its memory would be sent while it is frozen (--on-timeout {}): {}",
                             to_string(options_.live_limits->on_timeout), why));
}

Status TreeDump::copy_rounds() {
  const RoundsOptions options{
      .limits = [this] { return present_limits(); },
      .time_paused = [this] { return time_paused(store_.path_of(options_.id, kRole)); },
      .on_begin = options_.on_round_begins,
      .on_round = options_.on_round,
      .on_warning = options_.on_warning};
  const Status copied = copy_in_rounds(*memory_, live_, options_.record.root, options, rounds_);
  copied_at_ = Clock::now();
  return copied;
}

// Returns after a pause, with the limits that the operator has set by then. Errors: the migration
// is over.
Result<LiveLimits> TreeDump::present_limits() const {
  if (Status open = check_not_over(); !open) return failure(open.error());
  if (Status resumed = await_resumed(); !resumed) return failure(resumed.error());
  LiveLimits limits = *options_.live_limits;
  limits.memory_follows = options_.plan.may_run_before_memory();
  limits.frozen_work = frozen_work_;
  read_changed_limits(store_.path_of(options_.id, kRole), limits);
  return limits;
}

// Copies what the tree has written while it waited until other trees were copied.
Status TreeDump::catch_up() {
  if (rounds_.empty() || Clock::now() - copied_at_ < kShortWait) return {};
  if (!has_room_for(live_.sent_bytes(), live_.count_written_bytes())) return {};
  return or_send_frozen(copy_round());
}

Status TreeDump::copy_round() {
  const auto number = static_cast<unsigned>(rounds_.size());
  const auto begins = [&](uint64_t bytes) {
    if (options_.on_round_begins) options_.on_round_begins(number, bytes);
  };
  // This round must not pause, because other trees may be frozen.
  const auto round =
      memory_->send_round(live_, options_.record.root, {.may_pause = false, .on_begin = begins});
  if (!round) return failure(round.error());
  rounds_.push_back(*round);
  if (options_.on_round) {
    options_.on_round(static_cast<unsigned>(rounds_.size() - 1), round->bytes);
  }
  return {};
}

// Returns whether CRIU writes its small images to memory. That is not possible for a container or
// an own mount namespace: CRIU may dump whole file systems, which can be large.
bool TreeDump::describes_in_memory() const {
  const auto its = read_process_link(options_.record.root, "ns/mnt");
  const auto own = read_process_link(getpid(), "ns/mnt");
  return options_.plan.moves_memory_apart() && !is_container() && its && own && *its == *own;
}

// Notes what takes too long to read while the tree is frozen.
Status TreeDump::note_state_before() const {
  const auto tasks = tasks_of_tree(options_.record.root);
  if (!tasks) return failure(tasks.error());
  const auto inherited = read_inherited(*tasks);
  if (!inherited) return {};  // a task has just ended: the hook reads the state again
  carried::State before;
  *before.mutable_inherited() = inherited->agreed;
  return write_carried_state(work_ + "/" + kStateBeforeFile, before);
}

// Starts CRIU and the page reader before the rounds: after them, the process writes more memory
// during every delay.
Status TreeDump::prepare() {
  if (Status noted = note_state_before(); !noted) return noted;
  if (options_.plan.moves_memory_apart()) {
    if (Status started = memory_->prepare_frozen(); !started) return started;
  }
  if (is_container()) return {};
  auto held = HeldCriu::start(store_, {.criu = options_.criu,
                                       .id = options_.id,
                                       .role = kRole,
                                       .tree = options_.tree,
                                       .work = work_,
                                       .show = {}});
  if (!held) return failure(held.error());
  held_ = std::move(*held);
  return {};
}

// Returns the command that dumps a container. It runs runc, which passes CRIU the options that a
// container needs, and forgets the container after the dump.
Result<std::vector<std::string>> TreeDump::checkpoint_command(const std::string& images) const {
  std::string configuration = runc_configuration(options_.criu_options);
  if (options_.plan.moves_memory_apart())
    configuration += criu_settings(lazy_dump_options())->configuration;
  const Status relay = write_relay_script(store_, options_.id, kRole, options_.tree, options_.criu,
                                          work_, configuration);
  if (!relay) return failure(relay.error());
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  auto options = runc_options(options_.criu_options);
  if (!options) return options;
  std::vector<std::string> words = {"checkpoint", "--image-path", images, "--work-path", work_};
  words.insert(words.end(), options->begin(), options->end());
  words.push_back(options_.record.container.name);
  return runc->command(work_, words);
}

Status TreeDump::start() {
  if (describes_in_memory()) {
    const auto pages_files = count_pages_files(options_.record.root);
    if (!pages_files) return failure(pages_files.error());
    if (auto made = DumpImages::create(top_, *pages_files + kSpareLinks)) {
      description_ = std::move(*made);
    }
  }
  if (!is_container()) {
    auto options = options_.criu_options;
    if (options_.plan.original_goes_on) options.push_back("--leave-running");
    if (options_.plan.moves_memory_apart()) {
      for (std::string& option : lazy_dump_options()) options.push_back(std::move(option));
    }
    return held_->request(CriuRequest::kDump, {description_ ? description_->path() : top_, kLog,
                                               std::move(options), options_.record.root});
  }
  auto argv = checkpoint_command(top_);
  if (!argv) return failure(argv.error());
  auto runc = CriuProcess::start(
      {.argv = std::move(*argv), .log_file = work_ + "/dump.out", .background = true});
  if (!runc) return failure(runc.error());
  runc_ = std::move(*runc);
  return {};
}

// Waits until the hook holds the tree (true) or CRIU has ended (false). Errors: ECANCELED if the
// migration is over.
Result<bool> TreeDump::await_held() {
  // A user has few inotify instances. Without one, the loop polls.
  const auto watch = RecordWatch::open(store_, options_.id, kRole);
  for (;;) {
    auto record = store_.read(options_.id, kRole);
    if (!record) return failure(record.error());
    if (record->trees[options_.tree].phase >= TreePhase::kHeld) return true;
    if (criu()->ended()) return false;
    // Does not wait for CRIU's end if the migration is over: a stopped CRIU (SIGSTOP) never ends.
    if (is_over(record->state())) return failure(ECANCELED, record->error);
    wait_and_process({{watch ? watch->fd() : -1, POLLIN, 0}});
    if (watch) watch->drain();
  }
}

Status TreeDump::copy() {
  Status done = make_directories();
  if (done) done = prepare();
  if (done) done = find_files();
  if (done) done = copy_files();
  if (done) done = copy_live();
  return done;
}

Result<SealedTree> TreeDump::dump_and_seal() {
  if (Status sent = catch_up_files(); !sent) return failure(sent.error());
  if (Status caught_up = catch_up(); !caught_up) return failure(caught_up.error());
  if (options_.on_freeze) options_.on_freeze();
  if (Status started = start(); !started) return failure(started.error());
  auto held = await_held();
  if (!held) return failure(held.error());
  if (!*held) {
    return failure(explain_dump(*criu(), is_container() ? "runc checkpoint" : "criu dump",
                                work_ + "/" + kLog));
  }
  if (files_) {
    if (Status sent = files_->send_last(options_.record.root); !sent) return failure(sent.error());
  }
  if (!options_.plan.moves_memory_apart()) return seal_images();
  const auto index = index_frozen_memory();
  if (!index) return failure(index.error());
  // The target restores the description while the memory is on its way.
  memory_sent_ = std::async(std::launch::async,
                            [this, index = *index] { return send_and_seal_memory(index); });
  if (Status added = add_description(index->all); !added) return failure(added.error());
  auto sealed = seal_images();
  if (!sealed || options_.plan.may_run_before_memory()) return sealed;
  auto memory = finish_memory();
  if (!memory) return memory;
  return SealedTree{sealed->bytes + memory->bytes, sealed->files + memory->files};
}

// Seals the images. Their size includes the files that were sent apart.
Result<SealedTree> TreeDump::seal_images() {
  auto sealed = seal(options_.record.checkpoint);
  if (sealed && files_) sealed->bytes += files_->sent_bytes();
  return sealed;
}

// Adds to the checkpoint the page index and the images that CRIU has written to memory.
Status TreeDump::add_description(const PageIndex& index) {
  const std::string directory = description_ ? description_->path() : top_;
  const Status written = write_page_index(directory + "/" + kPageIndexFile, index);
  if (!written || !description_) return written;
  auto bundle = description_->bundle();
  if (!bundle) return failure(bundle.error());
  std::vector<UniqueFd> files;
  files.push_back(std::move(*bundle));
  const auto added =
      ask_at_length(options_.mount, to_request(request::AddFiles{options_.record.checkpoint}),
                    options_.seal_patience, Timeout::kWithoutProgress, std::move(files));
  if (!added)
    return failure(
        EIO, "send the images of the frozen tree to the source's daemon: " + added.error().message);
  description_.reset();
  return {};
}

Result<SealedTree> TreeDump::send_and_seal_memory(const FrozenMemoryIndex& index) {
  const SentWhen when =
      options_.plan.may_run_before_memory() ? SentWhen::kFollows : SentWhen::kArrived;
  if (Status sent = memory_->send_frozen(index, when); !sent) return failure(sent.error());
  return seal(memory_name());
}

bool TreeDump::has_room_for(uint64_t sent_bytes, uint64_t rest_bytes) const {
  return fits_with_rounds(sent_bytes, rest_bytes, rounds_.front().bytes, *options_.live_limits);
}

// Discards the rounds, because the tree has written more since the last round than the target has
// room for.
Status TreeDump::start_anew() {
  const char* const why = "the target has no room for copies of what was written meanwhile";
  if (Status allowed = may_send_frozen(why); !allowed) return allowed;
  options_.on_warning(fmt::format("all of its memory is sent while it is frozen: {}", why));
  live_.begin_anew();
  rounds_.clear();
  return memory_->start_anew();
}

Result<FrozenMemoryIndex> TreeDump::index_frozen_memory() {
  const auto record = store_.read(options_.id, kRole);
  if (!record) return failure(record.error());
  const auto& tasks = record->trees[options_.tree].tasks;
  const auto list = [&]() -> Result<FrozenMemoryIndex> {
    auto index = live_.index_frozen(tasks);
    if (index) return index;
    return failure(index.error().errno_value,
                   "list the memory of the frozen tree: " + index.error().message);
  };
  auto index = list();
  if (!index) return index;
  if (!rounds_.empty() && !has_room_for(index->sent_bytes, index->unsent.memory_bytes)) {
    if (Status anew = start_anew(); !anew) return failure(anew.error());
    index = list();
    if (!index) return index;
  }
  if (!index->discarded.empty()) {
    if (Status allowed = may_send_frozen(index->discarded); !allowed) {
      return failure(allowed.error());
    }
    options_.on_warning("all of its memory is sent while it is frozen: " + index->discarded);
  }
  return index;
}

// Waits for output of CRIU or for one of `fds`, at most kPollInterval.
void TreeDump::wait_and_process(std::vector<pollfd> fds) {
  held_ ? held_->add_to(fds) : runc_->add_to(fds);
  poll(fds.data(), fds.size(), static_cast<int>(kPollInterval.count()));
  criu()->process();
}

void TreeDump::wait_until(const std::function<bool()>& is_done) {
  auto patience_ends = Clock::now() + kEndPatience;
  while (!is_done()) {
    wait_and_process();
    if (Clock::now() < patience_ends) continue;
    patience_ends = Clock::now() + kEndPatience;
    unblock_criu();
  }
}

void TreeDump::wait_for_end() {
  if (held_) held_->hang_up();
  if (criu() == nullptr) return;
  wait_until([&] { return criu()->ended() || is_abandoned(); });
  if (!criu()->ended()) criu()->leave();
}

// CRIU waits without end for a process in a frozen control group, and must not be killed: it may be
// in the middle of changing the process. When the group is thawed, the hook makes CRIU fail.
bool TreeDump::is_abandoned() const {
  const auto record = store_.read(options_.id, kRole);
  if (!record || record->state() != MigrationState::kAborted) return false;
  return !check_thawed(options_.record.root);
}

// After the decision, removes what can keep CRIU from ending: a SIGSTOP, or a stopped daemon.
void TreeDump::unblock_criu() {
  auto record = store_.read(options_.id, kRole);
  const bool decided =
      record && (is_over(record->state()) || record->state() == MigrationState::kCommitted);
  if (!decided) return;
  // While CRIU is stopped (SIGSTOP), its tree stays frozen.
  criu()->resume();
  if (auto criu_of_runc = FrozenTasks::open({record->trees[options_.tree].criu})) {
    criu_of_runc->resume();
  }
  // CRIU may be blocked on the mount, and then the tree stays frozen.
  fail_requests_if_silent(options_.mount);
}

}  // namespace ppmr
