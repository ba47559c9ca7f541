#include "fuse_target/keep/kept_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/whole_file.h"
#include "fuse_target/keep/kept_file.h"
#include "fuse_target/keep/kept_writer.h"
#include "fuse_target/store/range_set.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;

int64_t ns_of(const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; }

Result<UniqueFd> open_to_read(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  return file;
}

// Returns the parts of a file that are not holes, up to `size_bytes`. The limit is necessary
// because the file of a protected process may grow meanwhile.
Result<std::vector<Range>> data_of(const UniqueFd& file, const std::string& path,
                                   uint64_t size_bytes) {
  std::vector<Range> ranges;
  for (off_t at = 0;;) {
    const off_t begin = lseek(file.get(), at, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) return ranges;
    const off_t end = begin < 0 ? begin : lseek(file.get(), begin, SEEK_HOLE);
    if (end < 0) return system_failure("find the holes of", path);
    if (static_cast<uint64_t>(begin) >= size_bytes) return ranges;
    ranges.push_back({static_cast<uint64_t>(begin), std::min<uint64_t>(end, size_bytes)});
    at = end;
  }
}

class Listing {
 public:
  explicit Listing(std::string top) : top_(std::move(top)) {}

  // The directory itself is the first node, under the name of the checkpoint.
  Status add_all(const std::string& name) {
    if (Status added = add(top_, 0, name); !added) return added;
    return add_below(top_, 0);
  }

  KeptIndex index;
  std::vector<std::string> paths;  // the path of each node

 private:
  Status add_below(const std::string& directory, uint32_t parent) {
    const auto entries = list_directory(directory);
    if (!entries) return failure(entries.error());
    for (const auto& entry : *entries) {
      const std::string path = entry.path();
      const auto number = static_cast<uint32_t>(paths.size());
      if (Status added = add(path, parent, entry.path().filename()); !added) return added;
      if (index.listing.nodes.back().type != wire::NodeType::kDirectory) continue;
      if (Status added = add_below(path, number); !added) return added;
    }
    return {};
  }

  Status add(const std::string& path, uint32_t parent, const std::string& name) {
    struct stat status {};
    if (lstat(path.c_str(), &status) != 0) return system_failure("read the attributes of", path);
    ListedNode node{.parent = parent, .name = name, .link_target = {}, .kept = {}};
    node.attributes = {static_cast<uint16_t>(status.st_mode & 07777), status.st_uid, status.st_gid,
                       ns_of(status.st_atim), ns_of(status.st_mtim)};
    node.ctime_ns = ns_of(status.st_ctim);
    std::vector<BlockStretch> stretches;
    if (S_ISREG(status.st_mode)) {
      node.type = wire::NodeType::kFile;
      node.size_bytes = static_cast<uint64_t>(status.st_size);
      const auto file = open_to_read(path);
      if (!file) return failure(file.error());
      const auto ranges = data_of(*file, path, node.size_bytes);
      if (!ranges) return failure(ranges.error());
      stretches = blocks_of(*ranges);
    } else if (S_ISLNK(status.st_mode)) {
      node.type = wire::NodeType::kSymlink;
      std::error_code error;
      node.link_target = fs::read_symlink(path, error);
      if (error) return failure(error.value(), "read the link " + path + ": " + error.message());
    } else if (!S_ISDIR(status.st_mode)) {
      return failure(EINVAL, path + " is neither a file, a directory nor a symbolic link");
    }
    index.listing.nodes.push_back(std::move(node));
    index.stretches.push_back(std::move(stretches));
    paths.push_back(path);
    return {};
  }

  const std::string top_;
};

// Reads the blocks at offset `at`. Bytes behind the end of the file are zero.
Status read_blocks(const UniqueFd& file, const std::string& path, uint64_t at,
                   std::span<std::byte> blocks) {
  while (!blocks.empty()) {
    const ssize_t count = pread(file.get(), blocks.data(), blocks.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("read", path);
    if (count == 0) break;
    blocks = blocks.subspan(static_cast<size_t>(count));
    at += static_cast<uint64_t>(count);
  }
  std::fill(blocks.begin(), blocks.end(), std::byte{0});
  return {};
}

Status append_file(const std::string& path, const std::vector<BlockStretch>& stretches,
                   std::vector<std::byte>& piece, KeptWriter& writer) {
  if (stretches.empty()) return {};
  const auto file = open_to_read(path);
  if (!file) return failure(file.error());
  for (const BlockStretch& stretch : stretches) {
    const uint64_t end = (stretch.first + stretch.count) * kKeptBlockBytes;
    for (uint64_t at = stretch.first * kKeptBlockBytes; at < end;) {
      const auto blocks = std::span(piece).first(std::min<uint64_t>(end - at, piece.size()));
      if (Status read = read_blocks(*file, path, at, blocks); !read) return read;
      if (Status written = writer.append(blocks); !written) return written;
      at += blocks.size();
    }
  }
  return {};
}

Status extract_file(const ListedNode& node, const std::string& path,
                    std::vector<std::byte>& piece) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return system_failure("create", path);
  for (const KeptBytes::Extent& extent : node.kept.extents) {
    const uint64_t end = std::min(extent.offset + extent.length, node.size_bytes);
    for (uint64_t at = extent.offset; at < end;) {
      const auto bytes = std::span(piece).first(std::min<uint64_t>(end - at, piece.size()));
      const uint64_t place = extent.place + (at - extent.offset);
      if (Status read = node.kept.bytes->read(place, bytes); !read) return read;
      if (Status written = write_all(file, bytes, at, path); !written) return written;
      at += bytes.size();
    }
  }
  if (ftruncate(file.get(), static_cast<off_t>(node.size_bytes)) != 0 ||
      fchmod(file.get(), node.attributes.mode) != 0) {
    return system_failure("set the size of", path);
  }
  return {};
}

Status make_node(const ListedNode& node, const std::string& path, std::vector<std::byte>& piece) {
  if (node.is_file()) return extract_file(node, path, piece);
  const bool is_made = node.type == wire::NodeType::kSymlink
                           ? symlink(node.link_target.c_str(), path.c_str()) == 0
                           : mkdir(path.c_str(), 0700) == 0;
  return is_made ? Status{} : system_failure("create", path);
}

Result<KeptFile::Opened> open_named(UniqueFd file, const std::string& path, const std::string& name,
                                    std::span<const SharedKey> keys) {
  auto opened = KeptFile::open(std::move(file), keys, path);
  if (!opened) {
    return failure(opened.error().errno_value, path + ": " + opened.error().message);
  }
  if (opened->listing.name() != name) {
    return failure(EBADMSG, path + ": contains '" + opened->listing.name() + "' instead of '" +
                                name + "': the file was renamed or replaced");
  }
  return opened;
}

}  // namespace

Status write_kept_directory(const std::string& from, const UniqueFd& to, const std::string& path,
                            const std::string& name, const SharedKey& key) {
  Listing listing(from);
  if (Status listed = listing.add_all(name); !listed) return listed;
  auto writer = KeptWriter::create(to, path, name, key, data_blocks_of(listing.index));
  if (!writer) return failure(writer.error());
  std::vector<std::byte> piece(kPieceBytes);
  for (size_t i = 0; i < listing.paths.size(); ++i) {
    const Status written =
        append_file(listing.paths[i], listing.index.stretches[i], piece, **writer);
    if (!written) return written;
  }
  if (Status finished = (*writer)->finish(listing.index); !finished) return finished;
  UniqueFd again(fcntl(to.get(), F_DUPFD_CLOEXEC, 0));
  if (!again) return system_failure("duplicate the descriptor of", path);
  const auto opened = open_named(std::move(again), path, name, std::span(&key, 1));
  return opened ? opened->file->verify() : failure(opened.error());
}

Status read_kept_directory(UniqueFd from, const std::string& path, const std::string& name,
                           std::span<const SharedKey> keys, const std::string& to) {
  const auto opened = open_named(std::move(from), path, name, keys);
  if (!opened) return failure(opened.error());
  std::vector<std::byte> piece(kPieceBytes);
  std::vector<std::string> paths;
  for (const ListedNode& node : opened->listing.nodes) {
    paths.push_back(paths.empty() ? to : paths.at(node.parent) + "/" + node.name);
    if (Status made = make_node(node, paths.back(), piece); !made) return made;
  }
  return {};
}

}  // namespace ppmr
