// If a process shrinks a memory, each process that reads a mapping beyond the new end gets SIGBUS.
// So the rounds read with pread(2). Only send_last() reads the mapping, while the tree is frozen.
// If a process outside of the tree shrinks the memory at that time, SIGBUS ends this program: the
// move is aborted, and the tree goes on here.
#include "processes/files/segment_rounds.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "processes/files/deleted_name.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// CRIU sends a smaller memory in less time than a separate part takes.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = 512;  // the unit of st_blocks
constexpr std::string_view kDeleted = " (deleted)";
constexpr std::string_view kMemfd = "/memfd:";
constexpr std::string_view kAnonymous = "/dev/zero";
constexpr size_t kFieldsBeforePath = 5;
// FileRounds numbers the files that have names from 1 upwards, so no number is used twice.
constexpr uint64_t kFirstNumberOfDeleted = uint64_t{1} << 63;

std::optional<dev_t> device_of_memfds() {
  const UniqueFd memfd(memfd_create("ppmr", MFD_CLOEXEC));
  struct stat facts {};
  if (!memfd || fstat(memfd.get(), &facts) != 0) return std::nullopt;
  return facts.st_dev;
}

// A line of /proc/PID/maps.
struct MapsLine {
  std::string_view range;  // "7f00-7f01"
  uint64_t inode = 0;
  std::string_view path;
};

std::optional<MapsLine> parse_maps_line(std::string_view line) {
  std::array<std::string_view, kFieldsBeforePath> fields;
  for (std::string_view& field : fields) {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    field = line.substr(0, line.find(' '));
    line.remove_prefix(field.size());
  }
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  MapsLine parsed{.range = fields[0], .path = line};
  const std::string_view inode = fields.back();
  std::from_chars(inode.data(), inode.data() + inode.size(), parsed.inode);
  return parsed.inode == 0 ? std::nullopt : std::optional(parsed);
}

// The name of a range in /proc/PID/map_files has no leading zeros.
std::string file_of_range(std::string_view range) {
  const auto trimmed = [](std::string_view number) {
    return number.substr(std::min(number.find_first_not_of('0'), number.size() - 1));
  };
  const size_t dash = range.find('-');
  if (dash == 0 || dash == std::string_view::npos || dash + 1 == range.size()) return "";
  return fmt::format("{}-{}", trimmed(range.substr(0, dash)), trimmed(range.substr(dash + 1)));
}

class Search {
 public:
  Search(dev_t device, const TmpfsNumbers& tmpfs) : device_(device), tmpfs_(tmpfs) {}

  void add_mapped(pid_t pid, std::string_view maps) {
    while (!maps.empty()) {
      const std::string_view text = maps.substr(0, maps.find('\n'));
      maps.remove_prefix(std::min(text.size() + 1, maps.size()));
      // Most lines are of other memory.
      if (!text.ends_with(kDeleted)) continue;
      const auto line = parse_maps_line(text);
      // A file of another device with the same inode is left to CRIU.
      if (!line || seen_.contains(line->inode) || !may_be_one(line->path)) continue;
      add(pid, "map_files/" + file_of_range(line->range));
    }
  }

  void add_open(pid_t pid) {
    const auto descriptors = read_descriptors(pid);
    if (!descriptors) return;  // the process has ended
    for (const Descriptor& descriptor : *descriptors) {
      if (!may_be_one(descriptor.target)) continue;
      add(pid, "fd/" + std::to_string(descriptor.number));
    }
  }

  std::vector<SharedSegment> take() { return std::move(found_); }

 private:
  // `link`: a path below /proc/PID. Meanwhile the link may have disappeared, or lead elsewhere.
  void add(pid_t pid, const std::string& link) {
    const auto target = read_process_link(pid, link);
    if (!target || !may_be_one(*target)) return;
    UniqueFd file(
        open(fmt::format("/proc/{}/{}", pid, link).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat facts {};
    if (!file || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    const auto name = name_of_segment(*target);
    const auto tmpfs = tmpfs_.find(facts.st_dev);
    const bool is_memory = name && facts.st_dev == device_;
    const bool is_deleted_file = !name && tmpfs != tmpfs_.end() && facts.st_nlink == 0;
    if (!is_memory && !is_deleted_file) return;
    size_t& count = is_memory ? memories_ : deleted_files_;
    if (count == kSegmentsMax || !seen_.insert(facts.st_ino).second) return;
    const uint64_t data_bytes = static_cast<uint64_t>(facts.st_blocks) * kBlockBytes;
    if (data_bytes < kSmallBytes) return;
    ++count;
    found_.push_back({std::move(file), facts.st_dev, facts.st_ino, name.value_or(""), data_bytes,
                      is_memory ? kSharedMemory : tmpfs->second});
  }

  bool may_be_one(std::string_view link) const {
    return name_of_segment(link) || (!tmpfs_.empty() && link.ends_with(kDeleted));
  }

  const dev_t device_;
  const TmpfsNumbers& tmpfs_;
  std::set<uint64_t> seen_;
  size_t memories_ = 0;
  size_t deleted_files_ = 0;
  std::vector<SharedSegment> found_;
};

// Maps a memory again if its size has changed since the last look. Makes its pages present, because
// a first touch costs three times as much as the digest of a page. Leaves out holes, because a
// touch would fill them. Without a mapping, send_last() reads as a round does.
MappedFile view_of(const UniqueFd& file, MappedFile view) {
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return {};
  const auto size = static_cast<size_t>(facts.st_size);
  if (view.bytes().size() != size) {
    auto mapped = MappedFile::map(file);
    if (!mapped) return {};
    view = std::move(*mapped);
  }
  for (off_t at = 0; at < static_cast<off_t>(size);) {
    const off_t data = lseek(file.get(), at, SEEK_DATA);
    if (data < 0) break;
    at = lseek(file.get(), data, SEEK_HOLE);
    if (at <= data || static_cast<size_t>(data) >= view.bytes().size()) break;
    const size_t end = std::min(static_cast<size_t>(at), view.bytes().size());
    auto* const start = const_cast<std::byte*>(view.bytes().data()) + data;
    (void)madvise(start, end - static_cast<size_t>(data), MADV_POPULATE_READ);  // from Linux 5.14
  }
  return view;
}

// Returns the name of a segment for errors.
std::string name_of(const SharedSegment& segment) {
  if (segment.is_deleted_file()) {
    return fmt::format("the deleted file with inode {} of a tmpfs", segment.inode);
  }
  return fmt::format("the shared memory '{}'", segment.name);
}

Result<uint64_t> size_of(const SharedSegment& segment) {
  struct stat facts {};
  if (fstat(segment.file.get(), &facts) != 0) return system_failure("inspect", name_of(segment));
  return static_cast<uint64_t>(facts.st_size);
}

}  // namespace

std::optional<std::string> name_of_segment(std::string_view link) {
  if (!link.ends_with(kDeleted)) return std::nullopt;
  link.remove_suffix(kDeleted.size());
  if (link == kAnonymous) return std::string(link);
  if (!link.starts_with(kMemfd)) return std::nullopt;
  return std::string(link.substr(kMemfd.size()));
}

Result<std::vector<SharedSegment>> open_shared_segments(pid_t root, const TmpfsNumbers& tmpfs) {
  const auto device = device_of_memfds();
  const auto own_user = read_process_link(getpid(), "ns/user");
  if (!own_user) return failure(own_user.error());
  const auto tree = read_tree(root);
  if (!tree) return failure(tree.error());
  if (!device) return std::vector<SharedSegment>{};
  Search search(*device, tmpfs);
  for (const ProcessStat& process : *tree) {
    const auto user = read_process_link(process.pid, "ns/user");
    if (!user) continue;  // the process has ended
    if (*user != *own_user) return std::vector<SharedSegment>{};
    if (const auto maps = read_process_file(process.pid, "maps")) {
      search.add_mapped(process.pid, *maps);
    }
    search.add_open(process.pid);
  }
  return search.take();
}

Result<uint64_t> SegmentRounds::send(Sent& sent, uint64_t size_bytes, const SentContent::Read& read,
                                     const Sink& sink) {
  const Status sized = sent.content.send_size(size_bytes, sink);
  if (!sized) return failure(sized.error());
  auto bytes = sent.content.send_changed(sent.segment.file.get(), read, sink);
  if (bytes) return bytes;
  return failure(bytes.error().errno_value,
                 "send " + name_of(sent.segment) + ": " + bytes.error().message);
}

Status SegmentRounds::begin(Sent& sent, SharedSegment segment, const Sink& sink) {
  const uint64_t number = next_number_++;
  sent.segment = std::move(segment);
  if (sent.segment.is_deleted_file()) {  // its first record is its size, as for any tmpfs file
    sent.content = SentContent(sent.segment.tmpfs, kFirstNumberOfDeleted + number);
    return {};
  }
  sent.content = SentContent(kSharedMemory, number);
  return sink(file_record::Segment{number, sent.segment.inode, sent.segment.name});
}

Result<uint64_t> SegmentRounds::send_round(pid_t root, const Sink& sink) {
  auto found = open_shared_segments(root, tmpfs_);
  if (!found) return failure(found.error());
  ++round_;
  for (SharedSegment& segment : *found) {
    Sent& sent = sent_[{segment.device, segment.inode}];
    sent.round = round_;
    if (sent.segment.file) continue;
    if (Status begun = begin(sent, std::move(segment), sink); !begun) return failure(begun.error());
  }
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    if (sent->second.round == round_) {
      ++sent;
      continue;
    }
    const file_record::Drop gone{sent->second.segment.tmpfs, sent->second.content.number()};
    if (Status put_it = sink(gone); !put_it) return failure(put_it.error());
    sent = sent_.erase(sent);
  }
  uint64_t bytes = 0;
  std::string buffer(kFileDataMaxBytes, '\0');
  for (auto& [identity, sent] : sent_) {
    const auto size_bytes = size_of(sent.segment);
    if (!size_bytes) return failure(size_bytes.error());
    const auto changed =
        send(sent, *size_bytes, reader_of(sent.segment.file.get(), std::span(buffer)), sink);
    if (!changed) return failure(changed.error());
    bytes += *changed;
    sent.view = view_of(sent.segment.file, std::move(sent.view));
  }
  return bytes;
}

Result<uint64_t> SegmentRounds::send_last(const Sink& sink) {
  uint64_t bytes = 0;
  std::string buffer(kFileDataMaxBytes, '\0');
  for (auto& [identity, sent] : sent_) {
    // Asks for the size only once: a process outside of the tree may extend the memory at any time,
    // and the reader must not go beyond the end of the mapping.
    const auto size_bytes = size_of(sent.segment);
    if (!size_bytes) return failure(size_bytes.error());
    const std::span<const std::byte> view = sent.view.bytes();
    SentContent::Read read = reader_of(sent.segment.file.get(), std::span(buffer));
    if (*size_bytes == view.size()) {
      read = [view](uint64_t offset, uint64_t bytes_max) -> Result<std::span<const char>> {
        const auto part = view.subspan(offset, std::min<uint64_t>(bytes_max, kFileDataMaxBytes));
        return std::span(reinterpret_cast<const char*>(part.data()), part.size());
      };
    }
    const auto changed = send(sent, *size_bytes, read, sink);
    if (!changed) return failure(changed.error());
    bytes += *changed;
  }
  return bytes;
}

std::string SegmentRounds::list_of_inodes() const {
  std::string list;
  for (const auto& [identity, sent] : sent_) {
    const auto& [device, inode] = identity;
    list += sent.segment.is_deleted_file() ? fmt::format("{} {}\n", inode, device)
                                           : fmt::format("{}\n", inode);
  }
  return list;
}

// Leaves owner, mode and times to CRIU.
Result<std::vector<DeletedFile>> SegmentRounds::deleted_files() const {
  std::vector<DeletedFile> all;
  for (const auto& [identity, sent] : sent_) {
    if (!sent.segment.is_deleted_file()) continue;
    struct stat facts {};
    if (fstat(sent.segment.file.get(), &facts) != 0) {
      return system_failure("inspect", name_of(sent.segment));
    }
    file_record::Entry entry{.name = kDeletedName + std::to_string(sent.segment.inode),
                             .file = sent.content.number(),
                             .size_bytes = static_cast<uint64_t>(facts.st_size),
                             .device = 0,
                             .target = {},
                             .attributes = {}};
    entry.attributes.mode = S_IFREG | 0600;
    all.push_back({sent.segment.tmpfs, std::move(entry)});
  }
  return all;
}

}  // namespace ppmr
