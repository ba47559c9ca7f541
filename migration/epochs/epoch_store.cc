// Everything that a power failure could lose is in memory, so nothing here is synced.
#include "migration/epochs/epoch_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/json_text.h"
#include "base/parse_json.h"
#include "base/sync_directory.h"
#include "base/whole_file.h"
#include "preflight/policy/checkpoint_links.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateFile = "/state.json";
constexpr const char* kContactFile = "/contact";
constexpr const char* kOnDiskFile = "/on-disk.json";
constexpr const char* kHeld = "/held";
constexpr const char* kReturning = "/returning";
constexpr const char* kMemoryPrefix = "memory-";
constexpr const char* kEpochPrefix = "epoch-";
constexpr uint64_t kCopyBytes = uint64_t{1} << 20;

Result<EpochState> read_state(const std::string& directory) {
  const std::string path = directory + kStateFile;
  auto text = read_whole_file(path);
  if (!text) return failure(text.error());
  const auto packed = parse_json(*text);
  auto state = packed.is_object() ? parse_epoch_state(packed)
                                  : failure(EPROTO, "the state of an epoch is not JSON");
  if (!state) return failure(state.error().errno_value, path + ": " + state.error().message);
  return state;
}

// Replaces the file with rename(2): a reader sees it whole.
Status replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  if (Status written = write_whole_file(temporary, text, O_TRUNC, 0600); !written) return written;
  if (rename(temporary.c_str(), path.c_str()) == 0) return {};
  return system_failure("rename", temporary);
}

Result<EpochOnDisk> read_on_disk(const std::string& directory) {
  const auto text = read_whole_file(directory + kOnDiskFile);
  if (!text) return failure(text.error());
  return parse_epoch_on_disk(parse_json(*text));
}

// Makes the directory `to` with hard links to all files below `from`.
Status link_files(const std::string& from, const std::string& to) {
  if (mkdir(to.c_str(), 0700) != 0) return system_failure("create", to);
  const auto entries = list_directory(from);
  if (!entries) return failure(entries.error());
  for (const auto& entry : *entries) {
    const std::string path = entry.path();
    const std::string linked = to + "/" + entry.path().filename().string();
    std::error_code error;
    const bool is_directory = entry.symlink_status(error).type() == fs::file_type::directory;
    if (error) return system_failure("read the attributes of", path, error.value());
    if (is_directory) {
      if (Status done = link_files(path, linked); !done) return done;
    } else if (link(path.c_str(), linked.c_str()) != 0) {
      return system_failure("create the link", linked);
    }
  }
  return {};
}

// Returns whether a tmpfs of this user is mounted at the directory. Other users must be able
// neither to read a page nor to place an epoch there.
Result<bool> has_own_tmpfs(const std::string& directory) {
  struct statfs kind {};
  struct stat here {};
  struct stat above {};
  if (statfs(directory.c_str(), &kind) != 0) {
    return system_failure("read the file system of", directory);
  }
  if (stat(directory.c_str(), &here) != 0) {
    return system_failure("read the attributes of", directory);
  }
  const auto of_another = [&] {
    return failure(EACCES, fmt::format("{} belongs to uid {}: run this command as that user",
                                       directory, here.st_uid));
  };
  if (stat((directory + "/..").c_str(), &above) != 0) {
    if (errno == EACCES) return of_another();
    return system_failure("read the attributes of", directory + "/..");
  }
  const bool is_mount_point = here.st_dev != above.st_dev;
  if (kind.f_type != TMPFS_MAGIC || !is_mount_point) return false;
  if (here.st_uid != geteuid()) return of_another();
  if ((here.st_mode & 0077) == 0) return true;
  return failure(EPERM, directory + " is open to other users: chmod 0700 it");
}

Status make_own_tmpfs(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return failure(error.value(), "create " + directory + ": " + error.message());
  const auto made = has_own_tmpfs(directory);
  if (!made) return failure(made.error());
  if (*made) return {};
  if (mount("ppmr-epochs", directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
            "mode=0700") == 0) {
    return {};
  }
  return system_failure("mount a tmpfs for epochs at", directory);
}

bool is_zero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

Status write_at(const UniqueFd& file, const std::string& path, std::span<const std::byte> bytes,
                uint64_t offset) {
  Status written = write_all(file, bytes, offset, "the memory of an epoch to " + path);
  if (written || written.error().errno_value != ENOSPC) return written;
  return failure(ENOSPC, written.error().message +
                             " (the tmpfs of the epochs is full: remount it with a larger size=)");
}

// Copies the memory of an epoch. Parts that are all zeros become holes, which take no memory.
Status copy_memory(const ArrivedEpoch& arrived, const UniqueFd& to, const std::string& path) {
  std::vector<std::byte> scratch(kCopyBytes);
  for (uint64_t at = 0; at < arrived.memory_bytes;) {
    const auto bytes = arrived.read(at, scratch);
    if (!bytes) return failure(bytes.error());
    if (bytes->empty()) {
      return failure(EPROTO, fmt::format("copy the memory of an epoch to {}: it has only {} of {} "
                                         "bytes",
                                         path, at, arrived.memory_bytes));
    }
    if (!is_zero(*bytes)) {
      if (Status written = write_at(to, path, *bytes, arrived.memory_offset + at); !written) {
        return written;
      }
    }
    at += bytes->size();
  }
  const uint64_t end = arrived.memory_offset + arrived.memory_bytes;
  if (ftruncate(to.get(), static_cast<off_t>(end)) == 0) return {};
  return system_failure("resize", path);
}

Status copy_images(const std::string& from, const std::string& to) {
  if (Status safe = refuse_links(from); !safe) return safe;
  std::error_code error;
  fs::create_directories(to, error);
  if (!error) {
    // `from` is a link to a directory (SealedImages): "/." is the directory.
    fs::copy(from + "/.", to, fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
  }
  if (!error) return {};
  return failure(error.value(), fmt::format("keep the images of an epoch: copy {} to {}: {}", from,
                                            to, error.message()));
}

Status check_index(const PageIndex& index, uint64_t memory_bytes) {
  for (const IndexedTask& task : index.tasks) {
    for (const PageRange& range : task.ranges) {
      if (range.offset + range.bytes() <= memory_bytes) continue;
      return failure(EPROTO, fmt::format("the page index of the epoch has a page at {}, but its "
                                         "memory ends at {}",
                                         range.offset, memory_bytes));
    }
  }
  return {};
}

// Returns an index of all that has arrived. An epoch arrives in rounds, and a page that was written
// between two rounds arrives twice.
PageIndex all_of(const ArrivedEpoch& arrived) {
  PageIndex all;
  all.tasks.push_back({0, 0, {{0, arrived.memory_bytes, arrived.memory_offset}}, 0});
  return all;
}

void punch(const UniqueFd& memory, const std::vector<PageRange>& stale) {
  for (const PageRange& part : stale) {
    (void)fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(part.offset), static_cast<off_t>(part.bytes()));
  }
}

// Returns the page index of an epoch. `epoch`: its directory. nullopt: its pages are not in this
// memory file, or the index cannot be read.
std::optional<PageIndex> index_in(const UniqueFd& memory, const std::string& epoch) {
  struct stat ours {};
  struct stat its {};
  if (fstat(memory.get(), &ours) != 0 || stat((epoch + "/memory").c_str(), &its) != 0) return {};
  if (ours.st_ino != its.st_ino) return {};  // the epoch is of another run
  auto index = read_page_index(epoch + "/images/" + kPageIndexFile);
  return index ? std::optional(std::move(*index)) : std::nullopt;
}

std::vector<PageIndex> kept_indexes(const UniqueFd& memory, const LockedEpochs& locked) {
  std::vector<PageIndex> kept;
  for (const SealedEpoch& epoch : kept_epochs(locked.state())) {
    if (auto index = index_in(memory, locked.epoch_directory(epoch.number))) {
      kept.push_back(std::move(*index));
    }
  }
  return kept;
}

// Frees the pages that only dropped epochs used.
void give_back(const UniqueFd& memory, const LockedEpochs& locked, const EpochState& before) {
  std::set<uint64_t> numbers;
  for (const SealedEpoch& epoch : kept_epochs(locked.state())) numbers.insert(epoch.number);
  std::vector<PageIndex> kept = kept_indexes(memory, locked);
  if (auto held = index_in(memory, locked.directory() + kHeld)) kept.push_back(std::move(*held));
  for (const SealedEpoch& epoch : kept_epochs(before)) {
    if (numbers.contains(epoch.number)) continue;
    const auto index = index_in(memory, locked.epoch_directory(epoch.number));
    if (index) punch(memory, stale_parts(*index, kept));
  }
}

// Cuts the memory file at `end_bytes`. Errors: EPROTO if the newest epoch has pages behind it.
Status cut_behind(const UniqueFd& memory, const LockedEpochs& locked, uint64_t end_bytes) {
  const std::string newest = locked.epoch_directory(locked.state().newest.number);
  const auto index = read_page_index(newest + "/images/" + kPageIndexFile);
  if (!index) return failure(index.error());
  if (Status fits = check_index(*index, end_bytes); !fits) {
    return failure(EPROTO, "an epoch would overwrite the one before: " + fits.error().message);
  }
  if (ftruncate(memory.get(), static_cast<off_t>(end_bytes)) == 0) return {};
  return system_failure("resize", newest + "/memory");
}

}  // namespace

Result<EpochStore> EpochStore::open(std::string directory) {
  if (Status made = make_own_tmpfs(directory); !made) return failure(made.error());
  return EpochStore(std::move(directory));
}

Result<std::optional<EpochStore>> EpochStore::open_existing(std::string directory) {
  std::error_code error;
  const bool exists = fs::exists(directory, error);
  if (error) return failure(error.value(), "read " + directory + ": " + error.message());
  if (!exists) return std::nullopt;
  const auto made = has_own_tmpfs(directory);
  if (!made) return failure(made.error());
  if (!*made) return std::nullopt;
  return EpochStore(std::move(directory));
}

Result<LockedEpochs> EpochStore::lock(const std::string& name) const {
  return lock_with(name, LOCK_EX);
}

Result<LockedEpochs> EpochStore::try_lock(const std::string& name) const {
  return lock_with(name, LOCK_EX | LOCK_NB);
}

Result<LockedEpochs> EpochStore::lock_with(const std::string& name, int operation) const {
  if (!is_protection_name(name)) {
    return failure(EINVAL, "'" + name +
                               "' is not a name for a protected process: letters, digits "
                               "and ._@-, at most 64");
  }
  LockedEpochs locked;
  locked.directory_ = directory_ + "/" + name;
  for (;;) {
    if (mkdir(locked.directory_.c_str(), 0700) != 0 && errno != EEXIST) {
      return system_failure("create", locked.directory_);
    }
    const std::string path = locked.directory_ + "/lock";
    locked.lock_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!locked.lock_ && errno == ENOENT) continue;  // discarded meanwhile
    if (!locked.lock_) return system_failure("open", path);
    while (flock(locked.lock_.get(), operation) != 0) {
      if (errno != EINTR) return system_failure("lock", path);
    }
    struct stat ours {};
    struct stat there {};
    if (fstat(locked.lock_.get(), &ours) != 0)
      return system_failure("read the attributes of", path);
    if (stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino) break;
  }
  auto state = read_state(locked.directory_);
  if (!state && state.error().errno_value != ENOENT) return failure(state.error());
  locked.exists_ = state.has_value();
  if (state) locked.state_ = std::move(*state);
  return locked;
}

Result<EpochState> EpochStore::read(const std::string& name) const {
  if (!is_protection_name(name))
    return failure(ENOENT, "no process is protected as '" + name + "'");
  auto state = read_state(directory_ + "/" + name);
  if (state || state.error().errno_value != ENOENT) return state;
  std::error_code ignored;
  if (fs::exists(directory_ + "/" + name + kReturning, ignored)) {
    return failure(ENOENT, "the epoch of " + name + " is being read from the disk: try again soon");
  }
  if (const auto on_disk = read_on_disk(directory_ + "/" + name);
      on_disk && !on_disk->error.empty()) {
    return failure(ENOENT, on_disk->error);
  }
  return failure(ENOENT, "no process is protected as '" + name +
                             "' with this partner (`ppmr takeover` lists them)");
}

Result<std::vector<EpochState>> EpochStore::list() const {
  std::vector<EpochState> all;
  const auto entries = list_directory(directory_);
  if (!entries) return failure(entries.error());
  for (const auto& entry : *entries) {
    if (auto state = read_state(entry.path())) all.push_back(std::move(*state));
  }
  std::sort(all.begin(), all.end(),
            [](const EpochState& left, const EpochState& right) { return left.name < right.name; });
  return all;
}

std::vector<std::string> EpochStore::copies() const {
  std::vector<std::string> names;
  for (const auto& entry : list_directory(directory_).value_or(DirectoryEntries())) {
    const std::string name = entry.path().filename();
    if (is_protection_name(name) && is_copy_name(name)) names.push_back(name);
  }
  return names;
}

Result<int64_t> EpochStore::contact_ns(const std::string& name) const {
  const std::string path = directory_ + "/" + name + kContactFile;
  struct stat contact {};
  if (stat(path.c_str(), &contact) != 0) return system_failure("read the attributes of", path);
  return contact.st_mtim.tv_sec * int64_t{1'000'000'000} + contact.st_mtim.tv_nsec;
}

Result<EpochOnDisk> EpochStore::on_disk(const std::string& name) const {
  if (!is_protection_name(name)) {
    return failure(ENOENT, "'" + name + "' is not a name for a protected process");
  }
  return read_on_disk(directory_ + "/" + name);
}

std::vector<std::string> EpochStore::unreadable() const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : list_directory(directory_).value_or(DirectoryEntries())) {
    if (fs::exists(entry.path().string() + kStateFile, ignored)) continue;
    const auto on_disk = read_on_disk(entry.path());
    if (on_disk && !on_disk->error.empty()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string EpochStore::epoch_directory(const std::string& name, uint64_t number) const {
  return fmt::format("{}/{}/{}{}", directory_, name, kEpochPrefix, number);
}

std::string LockedEpochs::epoch_directory(uint64_t number) const {
  return fmt::format("{}/{}{}", directory_, kEpochPrefix, number);
}

Status LockedEpochs::write(const EpochState& state) {
  const Status written = replace_file(directory_ + kStateFile, json_text(to_json(state)));
  if (!written) return written;
  state_ = state;
  exists_ = true;
  return {};
}

void LockedEpochs::note_contact() const {
  (void)write_whole_file(directory_ + kContactFile, "", O_TRUNC, 0600);
}

void LockedEpochs::remove_others() const {
  std::set<std::string> kept;
  for (const SealedEpoch& epoch : kept_epochs(state_)) {
    kept.insert(fs::path(epoch_directory(epoch.number)).filename());
  }
  const std::string memory = kMemoryPrefix + state_.run;
  std::error_code ignored;
  for (const auto& entry : list_directory(directory_).value_or(DirectoryEntries())) {
    const std::string name = entry.path().filename();
    const bool is_epoch = name.starts_with(kEpochPrefix) && !kept.contains(name);
    const bool is_memory = name.starts_with(kMemoryPrefix) && name != memory;
    if (is_epoch || is_memory) fs::remove_all(entry.path(), ignored);
  }
}

Status LockedEpochs::remove_epochs() const {
  const Status forgotten = remove_from_disk();
  std::error_code ignored;
  fs::remove_all(directory_ + kHeld, ignored);
  for (const auto& entry : list_directory(directory_).value_or(DirectoryEntries())) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kEpochPrefix) || name.starts_with(kMemoryPrefix)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
  return forgotten;
}

Result<EpochOnDisk> LockedEpochs::on_disk() const { return read_on_disk(directory_); }

bool LockedEpochs::may_be_on_disk() const {
  const auto known = on_disk();
  return known || known.error().errno_value != ENOENT;
}

std::string LockedEpochs::returning_directory() const { return directory_ + kReturning; }

Status LockedEpochs::note_on_disk(const EpochOnDisk& on_disk) const {
  return replace_file(directory_ + kOnDiskFile, json_text(to_json(on_disk)));
}

Status LockedEpochs::remove_from_disk() const {
  const auto known = on_disk();
  if (!known) return known.error().errno_value == ENOENT ? Status{} : failure(known.error());
  const std::string above = fs::path(known->file).parent_path();
  if (unlink(known->file.c_str()) != 0 && errno != ENOENT) {
    return system_failure("remove", known->file);
  }
  if (Status synced = sync_directory(above); !synced) return synced;
  (void)unlink((directory_ + kOnDiskFile).c_str());
  return {};
}

Result<std::string> LockedEpochs::hold(uint64_t number) const {
  if (const auto kept = find_epoch(state_, number); !kept) return failure(kept.error());
  release_held();
  const std::string held = directory_ + kHeld;
  if (Status linked = link_files(epoch_directory(number), held); !linked) {
    release_held();
    return failure(linked.error());
  }
  return held;
}

void LockedEpochs::release_held() const {
  const std::string held = directory_ + kHeld;
  const std::string file = directory_ + "/" + kMemoryPrefix + state_.run;
  if (const UniqueFd memory{open(file.c_str(), O_RDWR | O_CLOEXEC)}) {
    const auto index = index_in(memory, held);
    if (index) punch(memory, stale_parts(*index, kept_indexes(memory, *this)));
  }
  std::error_code ignored;
  fs::remove_all(held, ignored);
}

Status LockedEpochs::discard() {
  if (Status forgotten = remove_from_disk(); !forgotten) return forgotten;
  std::error_code error;
  fs::remove_all(directory_, error);
  exists_ = false;
  if (!error) return {};
  return failure(error.value(), "remove " + directory_ + ": " + error.message());
}

Status seal_epoch(LockedEpochs& locked, const EpochState& next, const ArrivedEpoch& arrived) {
  const EpochState before = locked.state();
  const std::string file = locked.directory() + "/" + kMemoryPrefix + next.run;
  const UniqueFd memory(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!memory) return system_failure("create", file);
  // A failed attempt may have left pages where this epoch has zeros, which copy_memory() skips.
  if (before.run == next.run && before.newest.number > 0) {
    if (Status cut = cut_behind(memory, locked, arrived.memory_offset); !cut) return cut;
  } else if (ftruncate(memory.get(), static_cast<off_t>(arrived.memory_offset)) != 0) {
    return system_failure("resize", file);
  }
  if (Status copied = copy_memory(arrived, memory, file); !copied) return copied;
  struct stat size {};
  if (fstat(memory.get(), &size) != 0) return system_failure("read the attributes of", file);
  const std::string directory = locked.epoch_directory(next.newest.number);
  std::error_code ignored;
  fs::remove_all(directory, ignored);  // left by an attempt whose answer was lost
  const std::string images = directory + "/images";
  if (Status copied = copy_images(arrived.images, images); !copied) return copied;
  const auto index = read_page_index(images + "/" + kPageIndexFile);
  if (!index) return failure(index.error());
  if (Status fits = check_index(*index, static_cast<uint64_t>(size.st_size)); !fits) return fits;
  const std::string linked = directory + "/memory";
  if (link(file.c_str(), linked.c_str()) != 0) return system_failure("create the link", linked);
  if (Status written = locked.write(next); !written) return written;
  punch(memory, stale_parts(all_of(arrived), {*index}));
  give_back(memory, locked, before);
  locked.remove_others();
  return {};
}

// Copies the whole memory file. seal_epoch() frees the pages that the epoch does not use.
Status copy_epoch(const LockedEpochs& from, LockedEpochs& to, const EpochState& copy) {
  const std::string epoch = from.epoch_directory(copy.newest.number);
  const std::string path = epoch + "/memory";
  const UniqueFd memory(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory) return system_failure("open", path);
  struct stat size {};
  if (fstat(memory.get(), &size) != 0) return system_failure("read the attributes of", path);
  const auto read = [&](uint64_t offset,
                        std::span<std::byte> scratch) -> Result<std::span<const std::byte>> {
    const ssize_t count =
        pread(memory.get(), scratch.data(), scratch.size(), static_cast<off_t>(offset));
    if (count < 0) return system_failure("read", path);
    return scratch.first(static_cast<size_t>(count));
  };
  return seal_epoch(to, copy,
                    {.images = epoch + "/images",
                     .memory_offset = 0,
                     .memory_bytes = static_cast<uint64_t>(size.st_size),
                     .read = read});
}

}  // namespace ppmr
