#include "migration/target/received_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "base/whole_file.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "processes/files/file_archive.h"
#include "processes/files/tmpfs_builder.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{250};
constexpr milliseconds kDaemonPatience{5000};
// This much memory must stay free when a part is put in place.
constexpr uint64_t kReserveBytes = uint64_t{128} << 20;

uint64_t available_bytes() {
  const auto text = read_whole_file("/proc/meminfo");
  const std::string_view key = "MemAvailable:";
  const size_t at = text ? text->find(key) : std::string::npos;
  if (at == std::string::npos) return UINT64_MAX;
  const size_t digits = text->find_first_not_of(' ', at + key.size());
  uint64_t kibibytes = 0;
  std::from_chars(text->data() + digits, text->data() + text->size(), kibibytes);
  return kibibytes << 10;
}

Status put_in_place(const std::string& path, TmpfsBuilder& builder) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return system_failure("open", path);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return system_failure("read the size of", path);
  const uint64_t available = available_bytes();
  if (static_cast<uint64_t>(status.st_size) + kReserveBytes > available) {
    return failure(
        ENOSPC, fmt::format("the target does not have enough memory for the files in memory of the "
                            "processes: {} MiB are available, the next part has {} MiB",
                            available >> 20, status.st_size >> 20));
  }
  FileRecordReader reader([&](std::span<char> into) -> Result<size_t> {
    for (;;) {
      const ssize_t n = read(file.get(), into.data(), into.size());
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) return system_failure("read", path);
    }
  });
  for (;;) {
    const auto record = reader.next();
    if (!record) return failure(record.error());
    if (Status applied = builder.apply(*record); !applied) return applied;
    if (std::holds_alternative<file_record::End>(*record)) return {};
  }
}

Status remove_part(const std::string& control_socket, const std::string& name,
                   const std::string& owner) {
  const auto removed =
      call(control_socket, to_request(request::Remove{name, owner}), kDaemonPatience);
  return removed ? accepted(*removed) : failure(removed.error());
}

}  // namespace

ReceivedFiles::ReceivedFiles(ReceivedFilesPlace place)
    : place_(std::move(place)), thread_([this] { receive(); }) {}

ReceivedFiles::~ReceivedFiles() {
  stops_ = true;
  thread_.join();
}

Status ReceivedFiles::wait_for(const std::string& name, milliseconds timeout) const {
  const json request =
      to_request(request::Wait{.checkpoint = name, .owner = place_.owner, .timeout = timeout});
  const auto answer = call(place_.control_socket, request, timeout + kDaemonPatience);
  return answer ? accepted(*answer) : failure(answer.error());
}

Status ReceivedFiles::receive_parts() {
  TmpfsBuilder builder(place_.directory, place_.is_allowed ? TmpfsBuilder::Mounts::kAllowed
                                                           : TmpfsBuilder::Mounts::kRefused);
  while (!builder.is_complete()) {
    const std::string name = file_part_name(place_.checkpoint, parts_);
    const Status sealed = wait_for(name, kSlice);
    if (stops_) return failure(ECANCELED, "the restore is over");
    if (!sealed && is_crowded(sealed.error())) {
      std::this_thread::sleep_for(kSlice);  // no event announces a free place
      continue;
    }
    if (!sealed && sealed.error().errno_value == ETIMEDOUT) continue;
    if (!sealed) return sealed;
    const Status placed = put_in_place(place_.mountpoint + "/" + name, builder);
    if (!placed) return placed;
    if (Status removed = remove_part(place_.control_socket, name, place_.owner); !removed) {
      return removed;
    }
    ++parts_;
  }
  segments_ = builder.take_segments();
  return {};
}

void ReceivedFiles::receive() {
  result_ = receive_parts();
  has_ended_ = true;
}

Status ReceivedFiles::finish(const std::function<bool()>& is_over) {
  // After a failed receive_parts(), parts_ may be 0 although the tree has files.
  if (!has_ended_ && parts_ == 0) {
    const Status any = wait_for(file_part_name(place_.checkpoint, 0), milliseconds{0});
    const bool has_none = !any && any.error().errno_value == ETIMEDOUT && parts_ == 0;
    if (has_none && !has_ended_) {
      stops_ = true;  // the thread ends by itself, up to a slice later
      return {};
    }
  }
  while (!has_ended_) {
    if (is_over()) return failure(ECANCELED, "the move is over");
    std::this_thread::sleep_for(milliseconds{1});
  }
  return result_;
}

void remove_parts(const std::string& control_socket, const std::string& checkpoint,
                  const std::string& owner) {
  const auto status = call(control_socket, to_request(request::Status{}), kDaemonPatience);
  if (!status) return;
  const std::string prefix = file_part_name(checkpoint, 0);
  const std::string_view of_all = std::string_view(prefix).substr(0, prefix.size() - 1);
  for (const json& entry : status->value("checkpoints", json::array())) {
    const std::string name = entry.value("name", "");
    if (name.starts_with(of_all)) (void)remove_part(control_socket, name, owner);
  }
}

}  // namespace ppmr
