#include "migration/target/epoch_requests.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/relay/target_driver.h"
#include "migration/relay/unit_fate.h"
#include "migration/target/sealed_images.h"
#include "migration/target/takeover.h"
#include "mount/mount_table.h"
#include "preflight/policy/restart_policy.h"
#include "restart_loader/criu/passed_options.h"
#include "restart_loader/pager/borrowed_file.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kDaemonPatience{2000};
constexpr milliseconds kRemovePatience{10'000};
constexpr const char* kSourceIsAlive = "its source is alive";

Error replaced(const std::string& name, const std::string& takeover) {
  return {EOWNERDEAD,
          fmt::format("{} was taken over and runs at the partner: migration {}", name, takeover)};
}

Error no_run() {
  return {EINVAL,
          "protect: the request has no valid ID of a run (install the same ppmr on both nodes)"};
}

// Adds to an answer what the disk has, because the source shows it. Leaves out the path of the
// file, which the source does not need.
json with_disk(json answer, const LockedEpochs& locked) {
  if (auto on_disk = locked.on_disk()) {
    on_disk->file.clear();
    answer["on_disk"] = to_json(*on_disk);
  }
  return answer;
}

// Discards the directory of a source that was refused: nothing has arrived. Keeps it if the disk
// has, or may have, an epoch of an earlier process, which an operator may still need.
void forget_refused(LockedEpochs& locked) {
  if (!locked.may_be_on_disk()) (void)locked.discard();
}

}  // namespace

json EpochRequests::answer(const agent_request::AnyOfProtection& request) const {
  auto answer = std::visit([this](const auto& kind) { return carry_out(kind); }, request);
  if (!answer) {
    const Error& why = answer.error();
    return {{"ok", false},
            {"errno", why.errno_value},
            {"error", why.message},
            {"replaced", why.errno_value == EOWNERDEAD}};
  }
  (*answer)["ok"] = true;
  return std::move(*answer);
}

// Looks for a takeover in the records: after a restart of this node, only they show it.
Status EpochRequests::check_replaced(const std::string& name, const ProtectedTree& tree) const {
  const auto taken_over = find_taken_over(records_, name, context_.peer, tree);
  if (!taken_over) return failure(taken_over.error());
  return taken_over->empty() ? Status{} : failure(replaced(name, *taken_over));
}

Result<LockedEpochs> EpochRequests::lock_for_source(
    const agent_request::OfProtection& request) const {
  const std::string& name = request.name;
  const ProtectedTree& tree = request.tree;
  if (Status valid = check_protected_name(name); !valid) return failure(valid.error());
  auto epochs = EpochStore::open(context_.directory);
  if (!epochs) return failure(epochs.error());
  auto locked = epochs->lock(name);
  if (!locked) return failure(locked.error());
  EpochState state = locked->state();
  const auto known = takeover_state(records_, state);
  if (!known) return failure(known.error());
  const std::optional<MigrationState> takeover = *known;
  if (request.rolls_back.value_or(state.rolls_back)) {
    const Status may = locked->exists() ? check_leader(state, takeover) : Status{};
    if (!may) return failure(may.error());
    state.rolls_back = true;
  } else if (!locked->exists()) {
    if (Status free = check_replaced(name, tree); !free) {
      forget_refused(*locked);
      return failure(free.error());
    }
    forget_all_epochs(state);
  } else if (Status its = check_source(state, takeover, context_.peer, tree); !its) {
    return failure(its.error());
  } else if (state.tree == tree) {
    switch (judge_source(takeover)) {
      case SourceMay::kGoOn:
        break;
      case SourceMay::kNotRun:
        return failure(replaced(name, state.takeover));
      case SourceMay::kGoOnAfterAbort:
        if (auto step =
                take_target_step(records_, state.takeover, target_event::Abort{kSourceIsAlive});
            !step) {
          return failure(step.error());
        }
        break;
    }
  } else if (judge_source(takeover) == SourceMay::kNotRun && runs_as_unit(state)) {
    return failure(replaced(name, state.takeover));
  } else if (Status may = check_replaceable(state, takeover); !may) {
    return failure(may.error());
  } else {
    forget_all_epochs(state);
  }
  state.name = name;
  state.tree = tree;
  state.peer = context_.peer;
  state.mountpoint = context_.mountpoint;
  state.audit_file = context_.audit_file;
  state.restart_policy = context_.restart_policy;
  state.takeover.clear();
  state.first_partner = request.first_partner;
  if (state.newest.number == 0) state.run = request.run;
  if (Status written = locked->write(state); !written) return failure(written.error());
  locked->note_contact();
  return locked;
}

Result<json> EpochRequests::carry_out(const agent_request::EpochOpen& open) const {
  if (!is_migration_id(open.run)) return failure(no_run());
  if (Status passed = check_passed_options(open.criu_options); !passed) {
    return failure(passed.error());
  }
  auto locked = lock_for_source(open);
  if (!locked) return failure(locked.error());
  if (Status possible = check_manager(open.manager); !possible) {
    if (locked->state().newest.number == 0) forget_refused(*locked);
    return failure(possible.error());
  }
  remove_failed(locked->state().name);
  // A version of ppmr without support for units and containers answers without `manager`.
  const EpochState& state = locked->state();
  json answer = {{"newest", state.newest.number},
                 {"run", state.run},
                 {"memory_end", state.newest.memory_end},
                 {"first_partner", state.first_partner},
                 {"manager", to_json(open.manager)}};
  return with_disk(std::move(answer), *locked);
}

// Refuses a manager that would prevent a takeover, while the source is still alive.
Status EpochRequests::check_manager(const TreeManager& manager) const {
  if (manager.unit.name.empty()) return {};
  const auto policy = parse_restart_policy(context_.restart_policy);
  if (!policy) return failure(policy.error());
  if (!policy->everything) {
    return failure(EACCES, "units are taken over only by a target with --allow-root-restart");
  }
  return check_unit_is_free(manager.unit.name);
}

// Returns whether the copy of the tree runs here as a unit. The boot of the lost node may then have
// started the unit there again.
bool EpochRequests::runs_as_unit(const EpochState& state) {
  if (state.manager.unit.name.empty()) return false;
  const Status free = check_unit_is_free(state.manager.unit.name);
  return !free && free.error().errno_value == EBUSY;
}

Result<json> EpochRequests::carry_out(const agent_request::EpochContact& contact) const {
  const auto locked = lock_for_source(contact);
  if (!locked) return failure(locked.error());
  return with_disk({{"newest", locked->state().newest.number}}, *locked);
}

Result<std::string> EpochRequests::control_socket() const {
  auto mount = find_mount(context_.mountpoint);
  if (!mount) return failure(mount.error());
  return mount->mount.source;
}

// Removes the parts of an epoch that a source has left in the image store, because it ended in the
// middle of the epoch.
void EpochRequests::remove_failed(const std::string& name) const {
  const auto socket = control_socket();
  if (!socket) return;
  const auto status = call(*socket, to_request(request::Status{}), kDaemonPatience);
  if (!status) return;
  for (const json& checkpoint : status->value("checkpoints", json::array())) {
    const std::string found = checkpoint.value("name", "");
    if (checkpoint.value("state", "") != "failed" || !is_epoch_checkpoint(found, name)) continue;
    (void)call(*socket, to_request(request::Remove{found, context_.peer}), kRemovePatience);
  }
}

// Returns the inode of a sealed checkpoint, which must come from the peer that makes the request.
Result<uint64_t> EpochRequests::sealed_inode(const std::string& socket,
                                             const std::string& checkpoint) const {
  const auto answer =
      call(socket,
           to_request(request::Wait{
               .checkpoint = checkpoint, .owner = context_.peer, .timeout = milliseconds(0)}),
           kDaemonPatience);
  if (!answer) return failure(answer.error());
  if (Status sealed = accepted(*answer); !sealed) return failure(sealed.error());
  return answer->at("inode").get<uint64_t>();
}

Status EpochRequests::keep(LockedEpochs& locked, EpochState next,
                           const agent_request::EpochSeal& seal) const {
  const auto socket = control_socket();
  if (!socket) return failure(socket.error());
  const auto inode = sealed_inode(*socket, seal.checkpoint);
  if (!inode) return failure(inode.error());
  if (auto sealed = sealed_inode(*socket, seal.memory); !sealed) return failure(sealed.error());
  const auto images = SealedImages::open({.control_socket = *socket,
                                          .mountpoint = context_.mountpoint,
                                          .checkpoint = seal.checkpoint,
                                          .inode = *inode});
  if (!images) return failure(images.error());
  BorrowedFile pages(*socket, seal.memory, "");
  if (Status borrowed = pages.borrow_all(); !borrowed) return borrowed;
  const auto read = [&](uint64_t offset, std::span<std::byte> scratch) {
    return pages.at(offset, scratch.size(), scratch);
  };
  next.newest.memory_end = seal.memory_offset + pages.end_bytes();
  const Status kept = seal_epoch(locked, next,
                                 {.images = images->path(),
                                  .memory_offset = seal.memory_offset,
                                  .memory_bytes = pages.end_bytes(),
                                  .read = read});
  if (!kept) return failure(images->with_names(kept.error()));
  for (const std::string& name : {seal.checkpoint, seal.memory}) {
    (void)call(*socket, to_request(request::Remove{name, context_.peer}), kRemovePatience);
  }
  return {};
}

Result<json> EpochRequests::carry_out(const agent_request::EpochSeal& seal) const {
  if (!is_migration_id(seal.run)) return failure(no_run());
  auto locked = lock_for_source(seal);
  if (!locked) return failure(locked.error());
  EpochState next = locked->state();
  const bool was_kept = next.run == seal.run && next.newest.number == seal.epoch.number;
  if (!was_kept) {
    const Status follows = check_sequence(next, seal.run, seal.epoch.number, seal.memory_offset);
    if (!follows) return failure(follows.error());
    next = with_newest(std::move(next), seal.epoch, seal.oldest);
    next.run = seal.run;
    next.criu_options = seal.criu_options;
    if (Status passed = check_passed_options(next.criu_options); !passed) {
      return failure(passed.error());
    }
    next.manager = seal.manager;
    if (Status kept = keep(*locked, next, seal); !kept) return failure(kept.error());
  }
  return with_disk({{"newest", seal.epoch.number}}, *locked);
}

Result<json> EpochRequests::carry_out(const agent_request::EpochClose& close) const {
  auto locked = lock_for_source(close);
  if (!locked) return failure(locked.error());
  if (Status gone = locked->discard(); !gone) return failure(gone.error());
  return json::object();
}

}  // namespace ppmr
