#include "migration/protect/partner_place.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "base/whole_file.h"
#include "daemon/control/mount_daemon.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kContactPatience{1500};

}  // namespace

request::NoteEpoch to_note(const EpochReport& report, const std::string& name,
                           const ProtectedTree& tree) {
  const SealedEpoch& epoch = report.epoch;
  request::NoteEpoch note = {.process = name,
                             .pid = tree.root,
                             .program = tree.program,
                             .epoch = static_cast<int64_t>(epoch.number),
                             .frozen_ns = epoch.frozen_ns,
                             .pause_ms = epoch.pause_ms,
                             .bytes = static_cast<int64_t>(epoch.bytes),
                             .sent_bytes = static_cast<int64_t>(epoch.arrived_bytes),
                             .every_ms = report.every.count()};
  if (report.on_disk) {
    note.disk_epoch = static_cast<int64_t>(report.on_disk->number);
    note.disk_frozen_ns = report.on_disk->frozen_ns;
    note.disk_error = report.on_disk->error;
  }
  return note;
}

void remove_leftovers(const MountEntry& mount, const std::string& name) {
  std::error_code ignored;
  for (const auto& entry : list_directory(mount.mountpoint).value_or(DirectoryEntries())) {
    if (is_epoch_checkpoint(entry.path().filename(), name)) {
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
}

Result<KeptAtPartner> PartnerPlace::open(const RunOfEpochs& run) {
  auto found = options_.find();
  if (!found) return failure(found.error());
  found_ = std::move(*found);
  // An earlier `ppmr protect` may have been killed in the middle of an epoch.
  remove_leftovers(found_.mount, options_.name);
  partner_ = std::make_unique<Partner>(found_, options_.name, options_.tree);
  return partner_->open(run);
}

Status PartnerPlace::keep(const RunOfEpochs& run, const SentEpoch& sent, const EpochDump&,
                          uint64_t oldest) {
  return partner_->seal(run, sent.epoch, {sent.checkpoint, sent.memory, sent.memory_offset},
                        oldest);
}

void PartnerPlace::note() {
  reported_.on_disk = partner_->on_disk();
  (void)ask(found_.mount, to_request(to_note(reported_, options_.name, options_.tree)));
}

void PartnerPlace::announce(const EpochReport& report) {
  reported_ = report;
  note();
  options_.on_epoch(reported_);
}

Status PartnerPlace::contact(const std::string& run) {
  const auto newest = partner_->contact(run, kContactPatience);
  if (!newest) return failure(newest.error());
  // The partner writes an epoch to its disk after it has sealed it.
  if (reported_.epoch.number > 0 && reported_.on_disk != partner_->on_disk()) note();
  return {};
}

Status PartnerPlace::close(const std::string& run) { return partner_->close(run); }

void PartnerPlace::note_end() {
  if (partner_) {
    (void)ask(found_.mount, to_request(request::NoteProtectionEnd{options_.name}));
  }
}

}  // namespace ppmr
