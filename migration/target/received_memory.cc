#include "migration/target/received_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "processes/files/segment_rounds.h"
#include "processes/proc_files.h"
#include "restart_loader/criu/memory_apart.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kPatience{5000};

std::string name_of(const UniqueFd& memfd) {
  const auto target = read_process_link(getpid(), "fd/" + std::to_string(memfd.get()));
  return target ? name_of_segment(*target).value_or("") : "";
}

Result<UniqueFd> copy_of(const UniqueFd& memfd) {
  const std::string name = name_of(memfd);
  const auto failed = [&name] {
    return system_failure("copy for another restore",
                          "the shared memory '" + name + "', which an earlier one has sealed");
  };
  UniqueFd copy(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  struct stat facts {};
  if (!copy || fstat(memfd.get(), &facts) != 0 || ftruncate(copy.get(), facts.st_size) != 0) {
    return failed();
  }
  for (off_t at = 0; at < facts.st_size;) {
    off_t from = lseek(memfd.get(), at, SEEK_DATA);
    if (from < 0) break;  // only a hole is left
    const off_t end = lseek(memfd.get(), from, SEEK_HOLE);
    if (lseek(copy.get(), from, SEEK_SET) != from) return failed();
    while (from < end) {
      const ssize_t sent =
          sendfile(copy.get(), memfd.get(), &from, static_cast<size_t>(end - from));
      if (sent == 0) errno = EIO;  // it has become shorter
      if (sent <= 0) return failed();
    }
    at = end;
  }
  return copy;
}

}  // namespace

Status ReceivedMemory::keep(const ReceivedMemoryPlace& place, std::vector<BuiltSegment> memory) {
  memory_ = std::move(memory);
  if (memory_.empty()) return {};
  request::HoldMemory request{place.checkpoint, place.owner, {}};
  std::vector<UniqueFd> descriptors;
  for (const BuiltSegment& segment : memory_) {
    request.inodes.push_back(segment.inode);
    descriptors.emplace_back(fcntl(segment.memfd.get(), F_DUPFD_CLOEXEC, 0));
    if (!descriptors.back()) {
      const int why = errno;
      return system_failure(
          fmt::format("give the target's daemon the shared memory '{}', for another restore",
                      name_of(segment.memfd)),
          "", why);
    }
  }
  ControlCall call;
  const Status sent = call.send(place.control_socket, to_request(request), kPatience, descriptors);
  if (!sent) return sent;
  const auto answer = call.answer(kPatience);
  if (!answer) return failure(answer.error());
  return accepted(*answer);
}

Status ReceivedMemory::fetch(const ReceivedMemoryPlace& place) {
  ControlCall call;
  const request::HeldMemory request{place.checkpoint, place.owner};
  if (Status sent = call.send(place.control_socket, to_request(request), kPatience); !sent) {
    return sent;
  }
  const auto answer = call.answer(kPatience);
  if (!answer) return failure(answer.error());
  if (Status lent = accepted(*answer); !lent) return lent;
  std::vector<UniqueFd> descriptors = call.descriptors();
  const auto inodes = answer->value("inodes", std::vector<uint64_t>{});
  if (inodes.size() != descriptors.size()) {
    return failure(
        EPROTO, fmt::format("fetch the shared memory of {} from the target's daemon: it passed {} "
                            "descriptors instead of {}",
                            place.checkpoint, descriptors.size(), inodes.size()));
  }
  memory_.clear();
  for (size_t i = 0; i < inodes.size(); ++i) {
    memory_.push_back({inodes[i], std::move(descriptors[i])});
  }
  return {};
}

Status ReceivedMemory::offer_to_criu(const std::string& work) {
  const std::string path = work + "/" + kMemoryApart;
  if (memory_.empty()) {
    unlink(path.c_str());
    return {};
  }
  for (BuiltSegment& segment : memory_) {
    if (fcntl(segment.memfd.get(), F_GET_SEALS) == 0) continue;
    auto copy = copy_of(segment.memfd);
    if (!copy) return failure(copy.error());
    segment.memfd = std::move(*copy);
  }
  std::ofstream file(path);
  for (const BuiltSegment& segment : memory_) {
    file << fmt::format("{} /proc/{}/fd/{}\n", segment.inode, getpid(), segment.memfd.get());
  }
  return file << std::flush ? Status{} : system_failure("write", path);
}

}  // namespace ppmr
