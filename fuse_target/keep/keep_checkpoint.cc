// Writes one checkpoint to the disk. Reads its bytes from the store as any reader does, and holds
// no lock during disk I/O, so streams and readers continue.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/without_exceptions.h"
#include "fuse_target/keep/keep_pace.h"
#include "fuse_target/keep/keeper.h"
#include "fuse_target/keep/kept_writer.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr int kDoublingsMax = 6;
// The space that stays free on the disk, for the index and the metadata of the file system.
constexpr uint64_t kSpareBytes = 4 << 20;

KeptIndex index_of(const ImageTree::Held& held) {
  KeptIndex index;
  index.listing = held.listing;
  for (const StoredNodePointer& node : held.nodes) {
    index.stretches.push_back(node->is_file() ? blocks_of(node->file->stored_ranges())
                                              : std::vector<BlockStretch>());
  }
  return index;
}

using Clock = std::chrono::steady_clock;

// Copies the planned bytes to the front of `to`, and fills the rest with zeros.
void copy(const ReadPlan& plan, std::span<std::byte> to) {
  for (const iovec& buffer : plan.buffers()) {
    std::memcpy(to.data(), buffer.iov_base, buffer.iov_len);
    to = to.subspan(buffer.iov_len);
  }
  std::fill(to.begin(), to.end(), std::byte{0});
}

}  // namespace

void Keeper::keep(const ImageTree::Held& held) {
  const int32_t number = ++last_number_;
  const std::string& name = held.listing.name();
  {
    MutexLock lock(mutex_);
    entries_[held.top] = Entry{.number = number, .name = name};
    report_.writing = name;
    report_.written_bytes = 0;
  }
  const auto began = std::chrono::steady_clock::now();
  auto entry = without_exceptions([&]() -> Result<Entry> {
    if (Status written = write(held, number); !written) return failure(written.error());
    if (Status published = publish(number); !published) return failure(published.error());
    return open_written(held, number);
  });
  if (!entry) return not_kept(held, number, entry.error());
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began);
  spdlog::info("checkpoint '{}' is kept in {}, {} MiB in {:.2f} s", name, path_of(number, true),
               entry->file->size_bytes() >> 20, took.count());
  kept(held, std::move(*entry));
}

Status Keeper::check_space(uint64_t needed_bytes) {
  const auto directory = files_.open_kept_directory();
  if (!directory) return failure(directory.error());
  struct statvfs space {};
  if (::fstatvfs(directory->get(), &space) != 0)
    return system_failure("read the free space of", options_.directory);
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  {
    MutexLock lock(mutex_);
    report_.free_bytes = free_bytes;
  }
  if (free_bytes >= needed_bytes) return {};
  return failure(ENOSPC, "keep a checkpoint in " + options_.directory + ": it needs " +
                             std::to_string(needed_bytes >> 20) + " MiB, and " +
                             std::to_string(free_bytes >> 20) +
                             " MiB are free: make space, or limit what is kept (--keep-count, "
                             "--keep-age, --keep-size)");
}

Status Keeper::write(const ImageTree::Held& held, int32_t number) {
  KeptIndex index = index_of(held);
  const uint64_t blocks = data_blocks_of(index);
  if (Status space = check_space(KeptPlaces(blocks).index_offset + kSpareBytes); !space) {
    return space;
  }
  const auto file = files_.create_kept(number);
  if (!file) return failure(file.error());
  auto writer = KeptWriter::create(*file, path_of(number, false), held.listing.name(),
                                   (*keys_)->first(), blocks);
  if (!writer) return failure(writer.error());
  if (Status written = write_bytes(held, index, **writer); !written) return written;
  return (*writer)->finish(index);
}

Status Keeper::write_bytes(const ImageTree::Held& held, const KeptIndex& index,
                           KeptWriter& writer) {
  std::vector<std::byte> piece(kPieceBytes);
  ReadPlan plan;
  for (size_t i = 0; i < held.nodes.size(); ++i) {
    for (const BlockStretch& stretch : index.stretches[i]) {
      const uint64_t end = (stretch.first + stretch.count) * kKeptBlockBytes;
      for (uint64_t at = stretch.first * kKeptBlockBytes; at < end;) {
        if (Status wanted = check_wanted(held); !wanted) return wanted;
        const auto began = Clock::now();
        const size_t length = std::min(end - at, kPieceBytes);
        ImageFile& file = *held.nodes[i]->file;
        if (Status planned = file.read_back(at, length, plan); !planned) return planned;
        if (Status ready = plan.make_ready(); !ready) return ready;
        const auto blocks = std::span(piece).first(length);
        copy(plan, blocks);
        plan.clear();
        if (Status written = writer.append(blocks); !written) return written;
        at += length;
        note_written(length);
        rest(Clock::now() - began);
      }
    }
  }
  return {};
}

Status Keeper::check_wanted(const ImageTree::Held& held) const {
  if (!stopping_ && tree_.is_to_keep(held.top)) return {};
  return failure(ECANCELED, "the checkpoint was removed, or the target ends");
}

void Keeper::note_written(uint64_t bytes) {
  MutexLock lock(mutex_);
  report_.written_bytes += bytes;
}

void Keeper::rest(std::chrono::nanoseconds after) const {
  const StoreCounters counters = memory_.counters();
  const double share = static_cast<double>(counters.used_bytes + counters.charged_bytes) /
                       static_cast<double>(counters.limit_bytes);
  std::this_thread::sleep_for(rest_after(after, Clock::now() - memory_.last_use(), share));
}

Status Keeper::publish(int32_t number) {
  const auto directory = files_.publish_kept(number);
  if (!directory) return failure(directory.error());
  if (::fsync(directory->get()) != 0) return system_failure("sync", options_.directory);
  return {};
}

// Verifies the written file before the checkpoint is reported as kept. Rests as often as
// write_bytes() does.
Status Keeper::verify(const ImageTree::Held& held, const KeptFile& file) const {
  auto began = Clock::now();
  return file.verify([&]() -> Status {
    if (Status wanted = check_wanted(held); !wanted) return wanted;
    rest(Clock::now() - began);
    began = Clock::now();
    return {};
  });
}

// Reads the whole file back: the target may give back memory only if the disk has its bytes.
Result<Keeper::Entry> Keeper::open_written(const ImageTree::Held& held, int32_t number) {
  auto file = files_.open_kept(number);
  if (!file) return failure(file.error());
  auto opened = KeptFile::open(std::move(*file), (*keys_)->all(), path_of(number, true));
  if (!opened) {
    return failure(opened.error().errno_value,
                   path_of(number, true) + ": " + opened.error().message);
  }
  if (Status verified = verify(held, *opened->file); !verified) return failure(verified.error());
  Entry entry{.number = number,
              .name = held.listing.name(),
              .sealed_ns = held.listing.sealed_ns,
              .file = std::move(opened->file)};
  auto& nodes = opened->listing.nodes;
  if (nodes.size() != held.nodes.size()) {
    return failure(EIO, path_of(number, true) + ": it has another number of files than written");
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].kept.extents.empty()) continue;
    const auto& stored = held.nodes[i]->file;
    if (stored->is_on_disk()) {
      // The file was spilled, or was read from a kept checkpoint whose file was removed. This call
      // frees the disk space of these bytes.
      (void)stored->read_from(std::move(nodes[i].kept)).get();
    } else {
      entry.memory_bytes += stored->facts().stored_bytes;
      entry.in_memory.push_back({stored, std::move(nodes[i].kept)});
    }
  }
  return entry;
}

void Keeper::kept(const ImageTree::Held& held, Entry entry) {
  {
    MutexLock lock(mutex_);
    report_.writing.clear();
    report_.error.clear();
    attempts_.erase(held.top);
    Entry& written = entries_[held.top];
    entry.is_removed = written.is_removed;
    entry.removed = std::move(written.removed);
    written = std::move(entry);
    if (written.is_removed) removals_.push_back(held.top);
  }
  removals_changed_.notify_all();
  // Set this state last: for a caller that waits for it, all other steps are done.
  if (!tree_.set_keep(held.top, KeepState::kKept)) removed(held.top, nullptr);
}

void Keeper::not_kept(const ImageTree::Held& held, int32_t number, const Error& error) {
  std::vector<Removed> waiting;
  const bool canceled = error.errno_value == ECANCELED;
  auto after = StoredCheckpoint::Clock::now();
  if (const auto gone = files_.remove_kept(number); !gone && !canceled) {
    spdlog::warn("{}: {}", path_of(number, false), gone.error().message);
  }
  {
    MutexLock lock(mutex_);
    report_.writing.clear();
    Entry& entry = entries_[held.top];
    waiting = std::move(entry.removed);
    if (!canceled) {
      const int doublings = std::min(attempts_[held.top]++, kDoublingsMax);
      after += options_.retry_after * (1 << (error.errno_value == ENOSPC ? 0 : doublings));
      ++report_.failures;
      if (report_.error != error.message) {
        spdlog::error("checkpoint '{}' is not kept; the target will try again: {}",
                      held.listing.name(), error.message);
      }
      report_.error = error.message;
    }
    entries_.erase(held.top);
  }
  (void)tree_.set_keep(held.top, KeepState::kNo, canceled ? "" : error.message, after);
  for (const Removed& done : waiting) done(Status());
}

}  // namespace ppmr
