#include "migration/protect/captured_epochs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace ppmr {
namespace {

constexpr const char* kArrivingFile = "/arriving";

// Reads the pages of an epoch once, and frees their memory after each read, so that no page is in
// memory twice.
class ArrivingPages {
 public:
  explicit ArrivingPages(UniqueFd file) : file_(std::move(file)) {}

  Result<std::span<const std::byte>> read(uint64_t offset, std::span<std::byte> scratch) const {
    ssize_t count = 0;
    do {
      count = pread(file_.get(), scratch.data(), scratch.size(), static_cast<off_t>(offset));
    } while (count < 0 && errno == EINTR);
    if (count < 0) return system_failure("read", "the memory of a captured epoch");
    (void)fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), count);
    return scratch.first(static_cast<size_t>(count));
  }

 private:
  UniqueFd file_;
};

}  // namespace

Result<CapturedEpochs> CapturedEpochs::create(const std::string& name, const ProtectedTree& tree,
                                              const std::string& directory) {
  auto store = EpochStore::open(directory);
  if (!store) return failure(store.error());
  {
    auto locked = store->lock(name);
    if (!locked) return failure(locked.error());
    if (Status gone = locked->discard(); !gone) return failure(gone.error());
  }
  // lock() creates the directory.
  if (auto locked = store->lock(name); !locked) return failure(locked.error());
  return CapturedEpochs(std::move(*store), name, tree, directory + "/" + name + kArrivingFile);
}

Result<KeptAtPartner> CapturedEpochs::kept() const {
  const auto locked = store_.lock(name_);
  if (!locked) return failure(locked.error());
  const EpochState& state = locked->state();
  return KeptAtPartner{
      .newest = state.newest.number, .run = state.run, .memory_end = state.newest.memory_end};
}

Status CapturedEpochs::keep(const RunOfEpochs& run, const SentEpoch& sent,
                            const std::string& images, uint64_t oldest) const {
  UniqueFd file(open(arriving_.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return system_failure("open", arriving_);
  auto locked = store_.lock(name_);
  if (!locked) return failure(locked.error());
  SealedEpoch epoch = sent.epoch;
  epoch.memory_end = sent.memory_offset + epoch.arrived_bytes;
  EpochState next = with_newest(locked->state(), epoch, oldest);
  next.name = name_;
  next.tree = tree_;
  next.run = run.id;
  next.criu_options = run.criu_options;
  next.manager = run.manager;
  const ArrivingPages pages(std::move(file));
  return seal_epoch(*locked, next,
                    {.images = images,
                     .memory_offset = sent.memory_offset,
                     .memory_bytes = epoch.arrived_bytes,
                     .read = [&](uint64_t offset, std::span<std::byte> scratch) {
                       return pages.read(
                           offset, scratch.first(std::min<uint64_t>(scratch.size(),
                                                                    epoch.arrived_bytes - offset)));
                     }});
}

Status CapturedEpochs::discard() const {
  auto locked = store_.lock(name_);
  return locked ? locked->discard() : failure(locked.error());
}

}  // namespace ppmr
