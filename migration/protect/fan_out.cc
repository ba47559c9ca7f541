#include "migration/protect/fan_out.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/without_exceptions.h"
#include "daemon/control/mount_daemon.h"
#include "migration/protect/epoch_forward.h"
#include "migration/protect/partner_place.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kContactInterval{2000};
constexpr milliseconds kContactPatience{1500};

}  // namespace

Result<std::unique_ptr<FanOut>> FanOut::create(FanOutOptions options) {
  auto captured = CapturedEpochs::create(options.name, options.tree, options.directory);
  if (!captured) return failure(captured.error());
  auto made = std::unique_ptr<FanOut>(new FanOut(std::move(options), std::move(*captured)));
  return made;
}

FanOut::FanOut(FanOutOptions options, CapturedEpochs captured)
    : options_(std::move(options)), captured_(std::move(captured)) {
  for (const FanOutTarget& target : options_.targets) {
    auto made = std::make_unique<Target>();
    made->options = target;
    if (!targets_.empty()) made->first_partner = options_.targets.front().name;
    made->is_checked = !target.check;
    targets_.push_back(std::move(made));
  }
  for (const auto& target : targets_) {
    threads_.emplace_back([this, at = target.get()] { serve(*at); });
  }
}

FanOut::~FanOut() {
  stop();
  (void)captured_.discard();
}

void FanOut::stop() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Result<KeptAtPartner> FanOut::open(const RunOfEpochs& run) {
  auto kept = captured_.kept();
  if (!kept) return kept;
  MutexLock lock(mutex_);
  run_ = run.id;
  return kept;
}

// Keeps the epochs that are being forwarded. No thread begins to forward another epoch until
// announce().
Status FanOut::keep(const RunOfEpochs& run, const SentEpoch& sent, const EpochDump& dump,
                    uint64_t oldest) {
  {
    MutexLock lock(mutex_);
    if (replaced_) return failure(EOWNERDEAD, *replaced_);
    is_held_ = true;
    for (const auto& target : targets_) {
      if (target->in_use != 0) oldest = std::min(oldest, target->in_use);
    }
  }
  const Status kept = captured_.keep(run, sent, dump.images(), oldest);
  if (kept) return {};
  {
    MutexLock lock(mutex_);
    is_held_ = false;
  }
  changed_.notify_all();
  return kept;
}

void FanOut::announce(const EpochReport& report) {
  {
    MutexLock lock(mutex_);
    newest_ = report;
    is_held_ = false;
  }
  changed_.notify_all();
}

Status FanOut::contact(const std::string&) {
  MutexLock lock(mutex_);
  return replaced_ ? failure(EOWNERDEAD, *replaced_) : Status{};
}

Status FanOut::close(const std::string&) {
  {
    MutexLock lock(mutex_);
    closes_ = true;
  }
  stop();
  MutexLock lock(mutex_);
  if (replaced_) return failure(EOWNERDEAD, *replaced_);
  if (unclosed_.empty()) return {};
  return failure(EHOSTUNREACH, fmt::format("{}", fmt::join(unclosed_, "; ")));
}

void FanOut::note_end() { stop(); }

// ---- The thread of a partner --------------------------------------------------------------------

void FanOut::serve(Target& target) {
  for (Work work = await_work(target);; work = await_work(target)) {
    const Status done = without_exceptions([&] { return do_work(target, work); });
    if (!done) note_failure(target, work, done.error());
    if (work == Work::kEnd) return;
  }
}

FanOut::Work FanOut::await_work(Target& target) {
  MutexLock lock(mutex_);
  for (;;) {
    if (const auto work = next_work(target)) return *work;
    const auto now = Clock::now();
    const auto wake_at =
        target.try_at > now ? std::min(target.try_at, target.contact_at) : target.contact_at;
    (void)changed_.wait_until(mutex_, wake_at);
  }
}

std::optional<FanOut::Work> FanOut::next_work(Target& target) {
  const auto now = Clock::now();
  if (stops_) return Work::kEnd;
  const bool is_behind = newest_.epoch.number > target.kept.epoch.number;
  if (is_behind && !is_held_ && now >= target.try_at) {
    target.sending = newest_;
    target.state = captured_.read();
    target.in_use = newest_.epoch.number;
    return Work::kForward;
  }
  if (target.noted != counted_.epoch.number && target.mount) return Work::kNote;
  if (now < target.contact_at) return std::nullopt;
  target.contact_at = now + kContactInterval;
  // Without an epoch the partner can take nothing over.
  if (target.kept.epoch.number == 0) return std::nullopt;
  return Work::kContact;
}

Status FanOut::do_work(Target& target, Work work) {
  switch (work) {
    case Work::kForward:
      return forward(target);
    case Work::kContact:
      return contact_one(target);
    case Work::kNote:
      note(target);
      return {};
    case Work::kEnd:
      break;
  }
  return end(target);
}

Status FanOut::reach(Target& target) {
  if (target.partner) return {};
  auto found = target.options.find();
  if (!found) return failure(found.error());
  // An attempt that has failed may have left its checkpoints.
  remove_leftovers(found->mount, options_.name);
  target.partner =
      std::make_unique<Partner>(*found, options_.name, options_.tree, target.first_partner);
  target.mount = std::move(*found);
  return {};
}

Status FanOut::forward(Target& target) {
  if (Status reached = reach(target); !reached) return reached;
  if (!target.state) return failure(target.state.error());
  if (!target.is_checked) {
    if (Status possible = target.options.check(); !possible) return possible;
    target.is_checked = true;
  }
  const auto began = Clock::now();
  const uint64_t number = target.sending.epoch.number;
  const auto bytes =
      forward_epoch(captured_.store(), *target.state, *target.partner, target.mount->mount,
                    {.number = number,
                     .oldest = number + 1 - std::min<uint64_t>(options_.keep, number),
                     .seal_patience = options_.seal_patience});
  if (!bytes) return failure(bytes.error());
  const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - began);
  MutexLock lock(mutex_);
  target.in_use = 0;
  target.kept = target.sending;
  target.contact_at = Clock::now() + kContactInterval;
  options_.on_event({{"event", "kept"},
                     {"partner", target.options.name},
                     {"number", number},
                     {"sent_bytes", *bytes},
                     {"took_ms", took.count()},
                     {"is_back", !target.told.empty()}});
  target.told.clear();
  report_sealed();
  return {};
}

Status FanOut::contact_one(Target& target) {
  if (Status reached = reach(target); !reached) return reached;
  std::string run;
  {
    MutexLock lock(mutex_);
    run = run_;
  }
  const auto newest = target.partner->contact(run, kContactPatience);
  if (!newest) return failure(newest.error());
  // The partner writes an epoch to its disk after it has sealed it.
  if (target.noted != 0 && target.noted_on_disk != target.partner->on_disk()) note(target);
  MutexLock lock(mutex_);
  if (*newest >= target.kept.epoch.number) return {};
  // The partner's node was restarted, and has lost the epochs in its memory.
  target.kept = {};
  report_sealed();
  return {};
}

void FanOut::note(Target& target) {
  EpochReport counted;
  {
    MutexLock lock(mutex_);
    counted = counted_;
  }
  target.noted = counted.epoch.number;
  if (target.partner) target.noted_on_disk = target.partner->on_disk();
  counted.on_disk = target.noted_on_disk;
  const auto note = to_note(counted, options_.name, options_.tree);
  if (target.noted != 0) (void)ask(target.mount->mount, to_request(note));
}

Status FanOut::end(Target& target) {
  std::string run;
  bool closes = false;
  {
    MutexLock lock(mutex_);
    run = run_;
    closes = closes_;
  }
  if (target.noted != 0) {
    (void)ask(target.mount->mount, to_request(request::NoteProtectionEnd{options_.name}));
  }
  if (!closes) return {};
  if (Status reached = reach(target); !reached) return reached;
  return target.partner->close(run);
}

void FanOut::note_failure(Target& target, Work work, const Error& error) {
  target.partner.reset();  // the next attempt finds the mount again
  MutexLock lock(mutex_);
  target.in_use = 0;
  target.try_at = Clock::now() + options_.retry_after;
  if (error.errno_value == EOWNERDEAD) {
    if (!replaced_) replaced_ = fmt::format("{}: {}", target.options.name, error.message);
    return;
  }
  if (work == Work::kEnd) {
    unclosed_.push_back(fmt::format("{}: {}", target.options.name, error.message));
    return;
  }
  // Reports a silent partner only when it misses an epoch.
  if (work != Work::kForward || target.told == error.message) return;
  target.told = error.message;
  options_.on_event(
      {{"event", "warning"},
       {"partner", target.options.name},
       {"sentence", fmt::format("{} does not get epoch {}: {}; it gets the newest "
                                "one when it is back",
                                target.options.name, target.sending.epoch.number, error.message)}});
}

EpochReport FanOut::sealed() const {
  std::vector<SealedEpoch> kept;
  for (const auto& target : targets_) kept.push_back(target->kept.epoch);
  return targets_[find_sealed(options_.policy, kept)]->kept;
}

void FanOut::report_sealed() {
  const EpochReport now = sealed();
  // If partners have lost their epochs, the last epoch that counted stays the reported one.
  if (now.epoch.number == 0 || now.epoch.number == counted_.epoch.number) return;
  counted_ = now;
  changed_.notify_all();
  if (now.epoch.number <= reported_) return;
  reported_ = now.epoch.number;
  json partners = json::array();
  for (const auto& target : targets_) {
    partners.push_back({{"partner", target->options.name}, {"epoch", target->kept.epoch.number}});
  }
  options_.on_epoch(now, partners);
}

}  // namespace ppmr
