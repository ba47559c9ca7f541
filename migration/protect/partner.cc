#include "migration/protect/partner.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kAskPatience{10'000};
// The partner copies the epoch in this time.
constexpr milliseconds kKeepPatience{120'000};
constexpr milliseconds kClockPatience{2000};
constexpr milliseconds kClockInterval{60'000};

}  // namespace

SealedEpoch on_clock_of_partner(SealedEpoch epoch, const std::optional<PeerClock>& clock) {
  if (!clock) return epoch;
  epoch.frozen_ns += clock->ahead_ns;
  epoch.clock_uncertainty_ns = clock->uncertainty_ns;
  return epoch;
}

EpochOnDisk on_own_clock(EpochOnDisk on_disk, const std::optional<PeerClock>& clock) {
  if (clock && on_disk.number > 0) on_disk.frozen_ns -= clock->ahead_ns;
  return on_disk;
}

// Measures the partner's clock again from time to time: a clock may drift, and may be set.
void Partner::look_at_clock() {
  const auto now = std::chrono::steady_clock::now();
  if (clock_ && now - clock_at_ < kClockInterval) return;
  clock_ = ask_peer_clock(agent_, kClockPatience);
  clock_at_ = now;
}

agent_request::OfProtection Partner::of_run(const std::string& run) const {
  return {.name = name_, .tree = tree_, .run = run, .first_partner = first_partner_};
}

Result<json> Partner::ask(const json& request, milliseconds patience) {
  auto answer = agent_.insist_on_answer(request, patience);
  if (answer && answer->value("ok", false)) {
    const auto on_disk = parse_epoch_on_disk(answer->value("on_disk", json()));
    on_disk_ = on_disk ? std::optional(on_own_clock(*on_disk, clock_)) : std::nullopt;
    return answer;
  }
  Error why = answer ? Error{answer->value("errno", EIO), answer->value("error", "no reason")}
                     : answer.error();
  // EOWNERDEAD ends the tree here, so only the field `replaced` of an answer may lead to it.
  if (why.errno_value == EOWNERDEAD) why.errno_value = EIO;
  if (answer && answer->value("replaced", false)) why.errno_value = EOWNERDEAD;
  return failure(std::move(why));
}

Result<KeptAtPartner> Partner::open(const RunOfEpochs& run) {
  look_at_clock();
  agent_request::EpochOpen request{of_run(run.id), run.criu_options, run.manager};
  request.rolls_back = run.rolls_back;
  const auto opened = ask(to_request(request), kAskPatience);
  if (!opened) return failure(opened.error());
  if (opened->value("manager", json::object()).size() != to_json(run.manager).size()) {
    return failure(EINVAL,
                   "the version of ppmr at the partner takes over no units and containers: update "
                   "ppmr there");
  }
  if (opened->value("first_partner", "") != first_partner_) {
    return failure(EINVAL,
                   "the version of ppmr at the partner does not know that another partner takes "
                   "over before it: update ppmr there");
  }
  return KeptAtPartner{.newest = opened->value("newest", uint64_t{0}),
                       .run = opened->value("run", ""),
                       .memory_end = opened->value("memory_end", uint64_t{0})};
}

Status Partner::seal(const RunOfEpochs& run, const SealedEpoch& epoch, const ArrivedParts& parts,
                     uint64_t oldest) {
  look_at_clock();
  agent_request::EpochSeal request{of_run(run.id)};
  request.epoch = on_clock_of_partner(epoch, clock_);
  request.oldest = oldest;
  request.checkpoint = parts.images;
  request.memory = parts.memory;
  request.memory_offset = parts.memory_offset;
  request.criu_options = run.criu_options;
  request.manager = run.manager;
  const auto kept = ask(to_request(request), kKeepPatience);
  return kept ? Status{} : failure(kept.error());
}

Result<uint64_t> Partner::contact(const std::string& run, milliseconds patience) {
  const auto asked = ask(to_request(agent_request::EpochContact{of_run(run)}), patience);
  if (!asked) return failure(asked.error());
  return asked->value("newest", uint64_t{0});
}

Status Partner::close(const std::string& run) {
  const auto closed = ask(to_request(agent_request::EpochClose{of_run(run)}), kAskPatience);
  return closed ? Status{} : failure(closed.error());
}

}  // namespace ppmr
