#include "migration/source/file_parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "base/whole_file.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/source/memory_file.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// Large enough that a seal, one round trip, takes little of the time.
constexpr uint64_t kPartBytes = uint64_t{128} << 20;
constexpr size_t kWriteBytes = size_t{1} << 20;
constexpr unsigned kRoundsMax = 6;
// This much is sent within some milliseconds.
constexpr uint64_t kLittleBytes = uint64_t{4} << 20;
// While the target puts one part in place, it receives the next one.
constexpr size_t kSealedMax = 2;
constexpr std::chrono::milliseconds kTakenInterval{5};

}  // namespace

Result<FileParts> FileParts::open(FilePartsPlace place, pid_t root) {
  auto found = open_private_tmpfs(root);
  if (!found) return failure(found.error());
  if (found->size() > kFileTmpfsMax) found->resize(kFileTmpfsMax);  // CRIU dumps the others
  TmpfsNumbers tmpfs;
  for (const PrivateTmpfs& one : *found) {
    tmpfs.emplace(one.device, static_cast<uint32_t>(tmpfs.size()));
  }
  const auto segments = open_shared_segments(root, tmpfs);
  if (!segments) return failure(segments.error());
  return FileParts(std::move(place), FileRounds(std::move(*found)), SegmentRounds(std::move(tmpfs)),
                   !segments->empty());
}

std::string FileParts::list_of_devices() const {
  std::string list;
  for (size_t i = 0; i < rounds_.all().size(); ++i) {
    list += fmt::format("{} {}\n", rounds_.all()[i].device, i);
  }
  return list;
}

std::string FileParts::path() const {
  return place_.mount.mountpoint + "/" + file_part_name(place_.checkpoint, number_);
}

Status FileParts::open_part() {
  const std::string file = path();
  const UniqueFd created(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!created) return system_failure("create the part of files", file);
  const Status deferred = defer_errors(place_.mount, file_part_name(place_.checkpoint, number_));
  if (!deferred) return deferred;
  file_ = UniqueFd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file_) return system_failure("open the part of files", file);
  written_ = 0;
  append_file_record(file_record::Part{number_}, pending_);
  return {};
}

Status FileParts::flush() {
  const Status written =
      write_all(file_, std::as_bytes(std::span(pending_)), written_, "the part of files " + path());
  if (!written) return written;
  written_ += pending_.size();
  unpaced_bytes_ += pending_.size();
  pending_.clear();
  return {};
}

Status FileParts::put(const FileRecord& record) {
  if (file_ && written_ >= kPartBytes) {
    if (Status sealed = seal_part(false); !sealed) return sealed;
  }
  if (!file_) {
    if (Status opened = open_part(); !opened) return opened;
  }
  append_file_record(record, pending_);
  if (pending_.size() < kWriteBytes) return {};
  const Status flushed = flush();
  return flushed ? rest() : flushed;
}

// Rests as --max-rate and --cpu-share require. The processor time of the daemon, which sends the
// bytes, does not count.
Status FileParts::rest() {
  if (!is_paced_) return {};
  (void)pace_.wait_after(std::exchange(unpaced_bytes_, 0));
  return place_.go_on();
}

Status FileParts::seal_part(bool is_last) {
  append_file_record(file_record::End{is_last}, pending_);
  if (Status flushed = flush(); !flushed) return flushed;
  file_.reset();
  const auto sealed = seal_checkpoint(place_.mount, file_part_name(place_.checkpoint, number_),
                                      place_.seal_patience);
  if (!sealed)
    return failure(sealed.error().errno_value,
                   "send the files in memory: " + sealed.error().message);
  sealed_.push_back(number_++);
  sent_bytes_ += sealed->bytes;
  return is_last ? Status{} : await_taken(kSealedMax);
}

// The daemon of the source lists a part as long as it has a name here. The entry becomes `removed`
// when the target has removed the part.
Result<bool> FileParts::was_taken(uint64_t number) const {
  const auto status = ask(place_.mount, to_request(request::Status{}));
  if (!status) return failure(EIO, status.error().message);
  const std::string name = file_part_name(place_.checkpoint, number);
  for (const nlohmann::json& entry : status->value("checkpoints", nlohmann::json::array())) {
    if (entry.value("name", "") == name) return entry.value("state", "") == "removed";
  }
  return failure(EIO, "send the files in memory: their checkpoint " + name + " is gone");
}

Status FileParts::await_taken(size_t left) {
  auto deadline = Clock::now() + place_.seal_patience;
  while (sealed_.size() > left) {
    const auto taken = was_taken(sealed_.front());
    if (!taken) return failure(taken.error());
    if (*taken) {
      const std::string name = file_part_name(place_.checkpoint, sealed_.front());
      unlink((place_.mount.mountpoint + "/" + name).c_str());
      sealed_.pop_front();
      deadline = Clock::now() + place_.seal_patience;
      continue;
    }
    if (Status wanted = place_.go_on(); !wanted) return wanted;
    if (Clock::now() >= deadline) {
      return failure(ETIMEDOUT,
                     fmt::format("the target did not put the files in memory in place within {} "
                                 "ms",
                                 place_.seal_patience.count()));
    }
    std::this_thread::sleep_for(kTakenInterval);
  }
  return {};
}

Result<uint64_t> FileParts::send_round(pid_t root, bool may_pause) {
  is_paced_ = may_pause;
  unpaced_bytes_ = 0;
  const auto sink = [&](const FileRecord& record) -> Status {
    const Status resumed = may_pause ? place_.await_resumed() : Status{};
    return resumed ? put(record) : resumed;
  };
  const auto bytes = rounds_.send_round(root, sink);
  if (!bytes) return failure(bytes.error());
  const auto shared_bytes = segments_.send_round(root, sink);
  if (!shared_bytes) return failure(shared_bytes.error());
  if (file_) {
    if (Status sealed = seal_part(false); !sealed) return failure(sealed.error());
  }
  place_.on_round(*bytes + *shared_bytes);
  return *bytes + *shared_bytes;
}

Status FileParts::copy(pid_t root) {
  uint64_t before = 0;
  const auto ends = Clock::now() + place_.max_time;
  for (unsigned round = 0; round < kRoundsMax; ++round) {
    const auto bytes = send_round(root, true);
    if (!bytes) return failure(bytes.error());
    if (Status wanted = place_.go_on(); !wanted) return wanted;
    const bool shrinks = round == 0 || *bytes < before - before / 4;
    if (*bytes < kLittleBytes || !shrinks || Clock::now() >= ends) break;
    before = *bytes;
  }
  return {};
}

Status FileParts::catch_up(pid_t root) {
  const auto bytes = send_round(root, false);
  if (!bytes) return failure(bytes.error());
  return await_taken(0);
}

Status FileParts::send_last(pid_t root) {
  is_paced_ = false;
  const auto sink = [this](const FileRecord& record) { return put(record); };
  const auto shared_bytes = segments_.send_last(sink);
  if (!shared_bytes) return failure(shared_bytes.error());
  auto deleted = segments_.deleted_files();
  if (!deleted) return failure(deleted.error());
  const auto bytes = rounds_.send_last(root, sink, std::move(*deleted));
  if (!bytes) return failure(bytes.error());
  if (!file_) {
    if (Status opened = open_part(); !opened) return opened;
  }
  return seal_part(true);
}

void FileParts::remove_names() {
  if (file_) sealed_.push_back(number_);
  file_.reset();
  for (const uint64_t part : sealed_) {
    unlink((place_.mount.mountpoint + "/" + file_part_name(place_.checkpoint, part)).c_str());
  }
  sealed_.clear();
}

}  // namespace ppmr
