#include "migration/protect/part_epochs.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>

#include "base/ending_signals.h"
#include "base/exit_code.h"
#include "base/json_message.h"
#include "base/line_socket.h"
#include "base/parse_json.h"
#include "daemon/command_line/output.h"
#include "daemon/control/endpoint_file.h"
#include "migration/protect/epoch_dump.h"
#include "migration/protect/epoch_forward.h"
#include "preflight/container_facts.h"
#include "restart_loader/criu/work_directory.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kWorkDirectory = "/run/ppmr/part-";
constexpr milliseconds kSealPatience{120'000};
// The leader waits until every part is ready.
constexpr milliseconds kFreezePatience{120'000};
// A captured part stands still while it waits for the others.
constexpr milliseconds kGoPatience{10'000};
constexpr milliseconds kReportPatience{10'000};
// A held part runs on if the leader is silent for this time.
constexpr milliseconds kHoldPatience{30'000};

Result<PartnerMount> find_partner(const std::string& mountpoint) {
  auto mount = find_mount(mountpoint);
  if (!mount) return failure(mount.error());
  auto endpoint = read_endpoint(mount->mount.source);
  if (!endpoint) return failure(endpoint.error());
  return PartnerMount{std::move(mount->mount), std::move(*endpoint)};
}

// Returns the same identity for all incarnations of the part, on every node.
ProtectedTree tree_of(const std::string& container) {
  return {.node_id = container, .boot_id = "", .root = 1, .program = container};
}

part_message::Report report_of(uint64_t number, const char* step, const SentEpoch& sent) {
  return {.number = number,
          .step = step,
          .error = {},
          .bytes = sent.epoch.bytes,
          .sent_bytes = sent.epoch.arrived_bytes,
          .pause_ms = sent.epoch.pause_ms};
}

void reap_page_readers() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace

struct PartEpochs::Run {
  Run(WorkDirectory directory, EpochStore store, PartnerMount found_here,
      std::optional<PartnerMount> found_partner, const std::string& container)
      : work(std::move(directory)),
        epochs(std::move(store)),
        here_mount(found_here),
        partner_mount(std::move(found_partner)),
        here(here_mount, container, tree_of(container)) {}

  WorkDirectory work;
  const EpochStore epochs;
  const PartnerMount here_mount;
  const std::optional<PartnerMount> partner_mount;
  Partner here;
  RunOfEpochs settings;
  LiveMemory live;
  LiveLimits limits;
};

PartEpochs::PartEpochs(PartSettings settings, UniqueFd leader)
    : settings_(std::move(settings)), leader_(std::move(leader)) {}

PartEpochs::~PartEpochs() = default;

Status PartEpochs::report(const part_message::Report& report) {
  const json packed = json_message::Value<part_message::Report>::encode(report);
  return write_line(leader_.get(), packed.dump(), Clock::now() + kReportPatience);
}

template <typename Message>
Result<Message> PartEpochs::await(uint64_t number, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    std::string line;
    const Status read =
        read_line(leader_.get(), pending_, line, part_message::kLineMaxBytes, deadline);
    if (!read) {
      has_leader_ = has_leader_ && read.error().errno_value == ETIMEDOUT;
      return failure(read.error().errno_value,
                     fmt::format("wait for the message '{}' of ppmr job agent about an epoch of "
                                 "container {}: {}",
                                 Message::kName, settings_.container, read.error().message));
    }
    const json packed = parse_json(line);
    const std::string op = packed.is_object() ? packed.value("op", "") : "";
    if (op == Message::kName) {
      auto message = read_one<Message>(packed);
      if (!message) return failure(message.error());
      if (number == 0 || message->number == number) return message;
      continue;  // it belongs to an epoch that has failed here
    }
    if (op != part_message::Epoch::kName) continue;  // it belongs to a failed epoch, too
    if (auto other = read_one<part_message::Epoch>(packed)) next_ = *other;
    return failure(ECANCELED, "ppmr job agent has given up this epoch, and begins another one");
  }
}

Status PartEpochs::before_freeze(uint64_t number) {
  if (Status told = report({.number = number, .step = part_message::kReady}); !told) return told;
  const auto freeze = await<part_message::Freeze>(number, kFreezePatience);
  return freeze ? Status{} : failure(freeze.error());
}

Status PartEpochs::when_captured(uint64_t number) {
  if (Status told = report({.number = number, .step = part_message::kCaptured}); !told) return told;
  const auto go = await<part_message::Go>(number, kGoPatience);
  if (!go) return failure(go.error());
  return go->keep ? Status{} : failure(ECANCELED, "another node of the job was not captured");
}

Status PartEpochs::begin_run() {
  auto here = find_partner(settings_.here);
  if (!here) return failure(here.error());
  std::optional<PartnerMount> partner;
  if (!settings_.partner.empty()) {
    auto found = find_partner(settings_.partner);
    if (!found) return failure(found.error());
    partner = std::move(*found);
  }
  auto work = WorkDirectory::create(kWorkDirectory + settings_.container);
  if (!work) return failure(work.error());
  auto epochs = EpochStore::open();
  if (!epochs) return failure(epochs.error());
  run_ = std::make_unique<Run>(std::move(*work), std::move(*epochs), std::move(*here),
                               std::move(partner), settings_.container);
  run_->settings = {.id = random_migration_id(),
                    .criu_options = settings_.criu_options,
                    .manager = {},
                    .rolls_back = true};
  run_->limits = settings_.limits;
  return {};
}

Result<part_message::Report> PartEpochs::capture(const part_message::Epoch& epoch) {
  const bool is_first = !run_;
  if (is_first) {
    if (Status begun = begin_run(); !begun) return failure(begun.error());
  }
  Run& run = *run_;
  const auto facts = gather_container_facts(settings_.container);
  if (!facts) return failure(facts.error());
  const ContainerState& container = facts->state;
  const auto root = identify(container.pid);
  if (!root) return failure(root.error());
  run.settings.manager.container = {container.name, container.bundle, container.created};
  if (is_first) {
    if (const auto opened = run.here.open(run.settings); !opened) return failure(opened.error());
  }
  std::function<Status(const SentEpoch&)> while_held;
  if (epoch.hold) while_held = [&](const SentEpoch& sent) { return hold(run, epoch, sent); };
  EpochDump dump(
      run.live, {.criu = settings_.criu,
                 .to = {run.here_mount.mount, ""},
                 .checkpoint = epoch_checkpoint(settings_.container, run.settings.id, epoch.number),
                 .work = run.work.path(),
                 .root = *root,
                 .container = settings_.container,
                 .limits = run.limits,
                 .criu_options = settings_.criu_options,
                 .seal_patience = kSealPatience,
                 .go_on = [] { return Status{}; },
                 .on_warning = [](const std::string& text) { print_to(stderr, "{}\n", text); },
                 .port = facts->bundle.port,
                 .before_freeze = [&] { return before_freeze(epoch.number); },
                 .when_captured = [&] { return when_captured(epoch.number); },
                 .while_held = std::move(while_held)});
  auto sent = dump.send();
  if (!sent) return failure(sent.error());
  if (epoch.hold) return report_of(epoch.number, part_message::kReleased, *sent);
  run.limits.fixed_part = sent->fixed_part;
  if (Status kept = keep(run, epoch, *sent); !kept) return failure(kept.error());
  return report_of(epoch.number, part_message::kKept, *sent);
}

Status PartEpochs::keep(Run& run, const part_message::Epoch& epoch, SentEpoch& sent) {
  sent.epoch.number = epoch.number;
  const ArrivedParts parts{sent.checkpoint, sent.memory, sent.memory_offset};
  return run.here.seal(run.settings, sent.epoch, parts, epoch.oldest);
}

Status PartEpochs::hold(Run& run, const part_message::Epoch& epoch, SentEpoch sent) {
  if (Status kept = keep(run, epoch, sent); !kept) return kept;
  if (Status told = report(report_of(epoch.number, part_message::kKept, sent)); !told) return told;
  for (;;) {
    const auto word = await<part_message::Hold>(epoch.number, kHoldPatience);
    if (!word) return failure(word.error());
    if (!word->on) return {};
  }
}

// Sends all that the partner lacks, because it may have missed earlier epochs.
Status PartEpochs::forward(const part_message::Epoch& epoch) const {
  if (!run_->partner_mount || epoch.hold) return {};
  const auto forwarded = forward_epoch(
      run_->epochs, settings_.container, *run_->partner_mount,
      {.number = epoch.number, .oldest = epoch.oldest, .seal_patience = kSealPatience});
  if (forwarded) return {};
  return failure(forwarded.error().errno_value,
                 "forward the epoch to the partner: " + forwarded.error().message);
}

void PartEpochs::run() {
  while (has_leader_) {
    reap_page_readers();
    if (!next_) {
      auto epoch = await<part_message::Epoch>(0, std::chrono::hours(1));
      if (!epoch) continue;
      next_ = *epoch;
    }
    const part_message::Epoch epoch = *std::exchange(next_, std::nullopt);
    auto kept = capture(epoch);
    // If this node does not keep the epoch, no node has its pages. The next epoch then has all
    // memory.
    if (!kept) run_.reset();
    const Status done = kept ? forward(epoch) : failure(kept.error());
    const part_message::Report outcome = done ? *kept
                                              : part_message::Report{.number = epoch.number,
                                                                     .step = part_message::kFailed,
                                                                     .error = done.error().message};
    const Status told = report(outcome);
    if (!told) return;
  }
}

void add_part_epochs_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand("part-epochs")->group("");  // not in --help
  auto settings = std::make_shared<PartSettings>();
  sub.add_option("--container", settings->container)->required();
  sub.add_option("--here", settings->here)->required();
  sub.add_option("--partner", settings->partner);
  sub.add_option("CRIU-OPTIONS", settings->criu_options)->take_all();
  sub.callback([settings, &exit_code] {
    ignore_ending_signals();  // it ends with its leader
    const auto criu = find_criu();
    if (!criu) {
      print_to(stderr, "{}\n", criu.error().message);
      exit_code = to_int(ExitCode::kFailure);
      return;
    }
    settings->criu = *criu;
    PartEpochs(*settings, UniqueFd(kLeaderSocket)).run();
    exit_code = to_int(ExitCode::kSuccess);
  });
}

}  // namespace ppmr
