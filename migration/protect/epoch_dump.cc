#include "migration/protect/epoch_dump.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/number_file.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/source/changed_limits.h"
#include "processes/carried/carried_state.h"
#include "processes/carried/inherited_attributes.h"
#include "processes/carried/written_files.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/criu_options.h"
#include "restart_loader/criu/lazy_dump.h"

namespace ppmr {
namespace {

constexpr const char* kMemorySuffix = ".memory";
// The longest time that the frozen tree waits for a slot, if the partner takes nothing and the pool
// is full.
constexpr std::chrono::milliseconds kFrozenPatience{1000};

uint64_t bytes_of(const PageIndex& index) {
  uint64_t bytes = 0;
  for (const IndexedTask& task : index.tasks) {
    for (const PageRange& range : task.ranges) bytes += range.bytes();
  }
  return bytes;
}

}  // namespace

std::chrono::milliseconds criu_patience(std::chrono::nanoseconds max_pause) {
  constexpr std::chrono::milliseconds kMin{2000};
  constexpr int kPauses = 50;
  return std::max(kMin, std::chrono::ceil<std::chrono::milliseconds>(kPauses * max_pause));
}

EpochDump::~EpochDump() {
  memory_.reset();
  if (is_local()) {
    unlink(options_.to.local_file.c_str());
    return;
  }
  if (!ask(options_.to.mount, to_request(request::Status{})))
    return;                 // a stopped daemon would block this
  std::error_code ignored;  // a failed session has removed them
  std::filesystem::remove_all(top(), ignored);
  std::filesystem::remove(top() + kMemorySuffix, ignored);
}

Status EpochDump::create_checkpoint() {
  if (is_local()) return {};
  if (auto alive = ask(options_.to.mount, to_request(request::Status{})); !alive) {
    return failure(EIO, alive.error().message);
  }
  if (mkdir(top().c_str(), 0700) != 0) return system_failure("create the checkpoint", top());
  return defer_errors(options_.to.mount, options_.checkpoint);
}

Status EpochDump::prepare() {
  if (Status created = create_checkpoint(); !created) return created;
  const ChangedLimits limits{.max_rate_bytes_per_s = options_.limits.max_rate_bytes_per_s,
                             .cpu_share_percent = options_.limits.cpu_share_percent};
  if (Status limited = write_changed_limits(options_.work, limits); !limited) return limited;
  auto memory = MemoryFile::create({.mount = options_.to.mount,
                                    .local_file = options_.to.local_file,
                                    .checkpoint = options_.checkpoint + kMemorySuffix,
                                    .work = options_.work,
                                    .pace = pace_files(options_.work),
                                    .first_offset = memory_offset_});
  if (!memory) return failure(memory.error());
  memory_.emplace(std::move(*memory));
  // runc takes a while to start, so it starts before the rounds. They copy what the container
  // writes in that time.
  return is_container() ? prepare_criu() : Status{};
}

Status EpochDump::prepare_criu() {
  std::string configuration;
  if (is_container()) {
    const auto settings = criu_settings(lazy_dump_options());
    if (!settings) return failure(settings.error());
    configuration = runc_configuration(options_.criu_options) + settings->configuration;
  }
  auto criu = CriuSession::start(options_.criu, options_.work,
                                 criu_patience(options_.limits.max_downtime), configuration);
  if (!criu) return failure(criu.error());
  criu_.emplace(std::move(*criu));
  // No links into the mount: CRIU would wait for the partner while the tree is frozen.
  auto made = DumpImages::create(top(), /*links=*/0);
  if (!made) return failure(made.error());
  description_.emplace(std::move(*made));
  if (!is_container()) return {};
  auto runc = RuncDump::start({.container = options_.container,
                               .criu = options_.criu,
                               .images = description_->path(),
                               .work = options_.work,
                               .criu_options = options_.criu_options});
  if (!runc) return failure(runc.error());
  runc_.emplace(std::move(*runc));
  return {};
}

Result<SentEpoch> EpochDump::send() {
  if (Status prepared = prepare(); !prepared) return failure(prepared.error());
  const auto running = tasks_of_tree(options_.root.pid);
  if (!running) return failure(running.error());
  // Read now, because it can take long. A task may just have ended: then it is read when frozen.
  if (auto inherited = read_inherited(*running)) before_ = std::move(inherited->agreed);
  std::vector<Round> rounds;
  const RoundsOptions copying{.limits = [this]() -> Result<LiveLimits> {
                                if (Status on = options_.go_on(); !on) return failure(on.error());
                                return options_.limits;
                              },
                              .on_round = {},
                              .on_warning = [](const std::string&) {}};
  const Status copied = copy_in_rounds(*memory_, live_, options_.root.pid, copying, rounds);
  if (!copied) return failure(copied.error());
  if (Status frozen = freeze(); !frozen) return failure(frozen.error());
  if (!options_.while_held) {
    if (Status sealed = seal(); !sealed) return failure(sealed.error());
  }
  return describe();
}

SentEpoch EpochDump::describe() const {
  const int64_t pause_ns = times_.runs_again_ns - times_.freeze_began_ns;
  return {.epoch = {.number = 0,
                    .frozen_ns = times_.freeze_began_ns,
                    .pause_ms = (pause_ns + 500'000) / 1'000'000,
                    .bytes = bytes_of(index_.all),
                    .arrived_bytes = live_.sent_bytes() - memory_offset_},
          .checkpoint = options_.checkpoint,
          .fixed_part = std::chrono::nanoseconds(pause_ns) - sending_,
          .memory = memory_->checkpoint(),
          .memory_offset = memory_offset_};
}

Status EpochDump::seal() {
  if (Status added = add_description(); !added || is_local()) return added;
  for (const std::string& name : {options_.checkpoint, memory_->checkpoint()}) {
    const auto sealed = seal_checkpoint(options_.to.mount, name, options_.seal_patience);
    if (!sealed) return failure(sealed.error());
  }
  return {};
}

Status EpochDump::freeze() {
  if (const auto& ready = options_.before_freeze; ready) {
    if (Status go = ready(); !go) return go;
  }
  if (Status ready = memory_->prepare_frozen(); !ready) return ready;
  if (!is_container()) {
    if (Status prepared = prepare_criu(); !prepared) return prepared;
  }
  const auto dumped = dump();
  if (!dumped) return failure(dumped.error());
  times_ = *dumped;
  return {};
}

Result<DumpTimes> EpochDump::dump() {
  DumpSteps steps{.on_network_lock = {},
                  .while_frozen = [this] { return while_frozen(); },
                  .on_network_unlock = {}};
  if (options_.port.exists()) {
    steps.on_network_lock = [this] { return options_.port.cut(); };
    steps.on_network_unlock = [this] {
      if (Status attached = options_.port.attach(); !attached) {
        options_.on_warning("it is cut off from its network: " + attached.error().message);
      }
    };
  }
  if (runc_) {
    auto dumped = criu_->dump(*runc_, steps);
    // A CRIU that was killed has not sent network-unlock.
    if (!dumped && steps.on_network_unlock) steps.on_network_unlock();
    return dumped;
  }
  std::vector<std::string> options = {"--leave-running"};
  for (std::string& option : lazy_dump_options()) options.push_back(std::move(option));
  options.insert(options.end(), options_.criu_options.begin(), options_.criu_options.end());
  return criu_->dump(options_.root.pid, description_->path(), options, steps);
}

Status EpochDump::while_frozen() {
  if (Status written = write_frozen_state(); !written) return written;
  if (Status captured = options_.when_captured ? options_.when_captured() : Status{}; !captured) {
    return captured;
  }
  if (!options_.while_held) return {};
  times_.freeze_began_ns = times_.runs_again_ns = realtime_ns();
  if (Status sealed = seal(); !sealed) return sealed;
  return options_.while_held(describe());
}

Status EpochDump::write_frozen_state() {
  const auto tasks = tasks_of_tree(options_.root.pid);
  if (!tasks) return failure(tasks.error());
  const auto carried = read_carried_state(*tasks, before_ ? &*before_ : nullptr);
  if (!carried) return failure(carried.error());
  // The paths of a container mean other files outside of it.
  const auto written =
      is_container() ? Result<std::vector<WrittenFile>>{} : read_written_files(*tasks);
  if (!written) return failure(written.error());
  auto index = live_.index_frozen(*tasks);
  if (!index) {
    return failure(index.error().errno_value,
                   "list the memory of the frozen tree: " + index.error().message);
  }
  index_ = std::move(*index);
  const auto began = std::chrono::steady_clock::now();
  if (Status sent = memory_->send_frozen(index_, SentWhen::kInThePool, kFrozenPatience); !sent) {
    return sent;
  }
  sending_ = std::chrono::steady_clock::now() - began;
  live_.note_frozen_sent(index_);
  const std::string files = description_->path() + "/" + kWrittenFilesFile;
  if (Status noted = write_written_files(files, *written); !noted) return noted;
  return write_carried_state(description_->path() + "/" + kCarriedStateFile, *carried);
}

Status EpochDump::add_description() {
  if (!index_.discarded.empty()) {
    options_.on_warning("all of its memory was sent while it was frozen: " + index_.discarded);
  }
  const Status written = write_page_index(description_->path() + "/" + kPageIndexFile, index_.all);
  if (!written || is_local()) return written;
  auto bundle = description_->bundle();
  if (!bundle) return failure(bundle.error());
  std::vector<UniqueFd> files;
  files.push_back(std::move(*bundle));
  const auto added =
      ask_at_length(options_.to.mount, to_request(request::AddFiles{options_.checkpoint}),
                    options_.seal_patience, Timeout::kWithoutProgress, std::move(files));
  description_.reset();
  if (added) return {};
  return failure(EIO,
                 "send the images of the tree to the source's daemon: " + added.error().message);
}

}  // namespace ppmr
