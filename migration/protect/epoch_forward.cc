#include "migration/protect/epoch_forward.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/whole_file.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/source/memory_file.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemorySuffix = ".memory";
constexpr size_t kCopyBytes = size_t{1} << 20;

// Copies [begin, end) of `from` to the start of `to`. Copies holes as holes. Returns the number of
// bytes outside of holes.
Result<uint64_t> copy_part(const UniqueFd& from, uint64_t begin, uint64_t end, const UniqueFd& to) {
  std::vector<std::byte> bytes(kCopyBytes);
  uint64_t copied = 0;
  for (uint64_t at = begin; at < end;) {
    const off_t data = lseek(from.get(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data < 0) return system_failure("find the pages of", "an epoch");
    at = static_cast<uint64_t>(data);
    if (at >= end) break;
    const ssize_t count = pread(from.get(), bytes.data(), std::min<uint64_t>(kCopyBytes, end - at),
                                static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("read", "the memory of an epoch");
    if (count == 0) return failure(EIO, "the memory of the epoch is shorter than it says");
    const auto part = std::span(bytes).first(static_cast<size_t>(count));
    const Status sent = write_all(to, part, at - begin, "the memory of an epoch");
    if (!sent) return failure(sent.error());
    at += part.size();
    copied += part.size();
  }
  if (ftruncate(to.get(), static_cast<off_t>(end - begin)) == 0) return copied;
  return system_failure("resize", "the memory of an epoch");
}

// Two checkpoints in the mount: the images and the memory of an epoch. The destructor removes their
// names at this node; the partner keeps them.
class Checkpoints {
 public:
  Checkpoints(const MountEntry& mount, std::string name) : mount_(mount), name_(std::move(name)) {}
  ~Checkpoints() {
    if (!ask(mount_, to_request(request::Status{}))) return;  // a stopped daemon would block this
    std::error_code ignored;
    fs::remove_all(path(), ignored);
    fs::remove(path() + kMemorySuffix, ignored);
  }

  std::string path() const { return mount_.mountpoint + "/" + name_; }
  std::string images() const { return name_; }
  std::string memory() const { return name_ + kMemorySuffix; }

  Status send_images(const std::string& from) const {
    std::error_code error;
    if (mkdir(path().c_str(), 0700) != 0) return system_failure("create the checkpoint", path());
    fs::copy(from, path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
    if (!error) return {};
    return failure(error.value(),
                   fmt::format("copy the images {} into {}: {}", from, path(), error.message()));
  }

  Result<uint64_t> send_memory(const std::string& from, uint64_t begin, uint64_t end) const {
    const UniqueFd pages(open(from.c_str(), O_RDONLY | O_CLOEXEC));
    if (!pages) return system_failure("open", from);
    const std::string to = path() + kMemorySuffix;
    const UniqueFd file(open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return system_failure("create the memory checkpoint", to);
    return copy_part(pages, begin, end, file);
  }

 private:
  const MountEntry& mount_;
  const std::string name_;
};

// Returns the end of the pages that the partner already has of the run. If this epoch does not
// follow those pages, gives `run` a new ID and returns 0: all memory is sent.
uint64_t first_missing(const KeptAtPartner& kept, const SealedEpoch& epoch, RunOfEpochs& run) {
  if (kept.newest == 0 || kept.run != run.id) return 0;
  if (kept.newest < epoch.number && kept.memory_end <= epoch.memory_end) return kept.memory_end;
  run.id = random_migration_id();
  return 0;
}

}  // namespace

Result<uint64_t> forward_epoch(const EpochStore& epochs, const EpochState& state, Partner& partner,
                               const MountEntry& mount, const ForwardOptions& options) {
  const auto epoch = find_epoch(state, options.number);
  if (!epoch) return failure(epoch.error());
  const bool is_newest = epoch->number == state.newest.number;
  RunOfEpochs run{.id = is_newest ? state.run : random_migration_id(),
                  .criu_options = state.criu_options,
                  .manager = state.manager,
                  .rolls_back = state.rolls_back};
  const auto kept = partner.open(run);
  if (!kept) return failure(kept.error());
  if (kept->run == run.id && kept->newest == epoch->number) return uint64_t{0};
  const uint64_t begin = first_missing(*kept, *epoch, run);
  const std::string directory = epochs.epoch_directory(state.name, epoch->number);
  // Each attempt uses a new name: the target may still have a checkpoint of a failed attempt.
  const Checkpoints checkpoints(mount,
                                epoch_checkpoint(state.name, random_migration_id(), epoch->number));
  if (Status sent = checkpoints.send_images(directory + "/images"); !sent) {
    return failure(sent.error());
  }
  const auto bytes = checkpoints.send_memory(directory + "/memory", begin, epoch->memory_end);
  if (!bytes) return bytes;
  for (const std::string& checkpoint : {checkpoints.images(), checkpoints.memory()}) {
    const auto sealed = seal_checkpoint(mount, checkpoint, options.seal_patience);
    if (!sealed) return failure(sealed.error());
  }
  const ArrivedParts parts{checkpoints.images(), checkpoints.memory(), begin};
  if (Status sealed = partner.seal(run, *epoch, parts, options.oldest); !sealed) {
    return failure(sealed.error());
  }
  return bytes;
}

Result<uint64_t> forward_epoch(const EpochStore& epochs, const std::string& name,
                               const PartnerMount& to, const ForwardOptions& options) {
  const auto state = epochs.read(name);
  if (!state) return failure(state.error());
  Partner partner(to, name, state->tree);
  return forward_epoch(epochs, *state, partner, to.mount, options);
}

}  // namespace ppmr
