#include "processes/files/file_rounds.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/clock.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

// The kernel's clock for file times advances in ticks of up to 10 ms. A write in the same tick as a
// look may leave the times as the look saw them. This value has a margin.
constexpr int64_t kClockTickNs = 50'000'000;
constexpr size_t kXattrBytesMax = size_t{512} << 10;

bool is_gone(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

int64_t ns_of(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

std::string path_in(const std::string& directory, const std::string& name) {
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

std::string own_path(int file) { return "/proc/self/fd/" + std::to_string(file); }

// `path`: the path of an open file. Returns no attributes if the file system does not support them.
Result<std::vector<std::pair<std::string, std::string>>> read_xattrs(const std::string& path,
                                                                     const std::string& name) {
  std::vector<std::pair<std::string, std::string>> found;
  std::string names(XATTR_LIST_MAX, '\0');
  const ssize_t listed = listxattr(path.c_str(), names.data(), names.size());
  if (listed < 0 && (errno == ENOTSUP || is_gone(errno))) return found;
  if (listed < 0) return system_failure("list the extended attributes of", name);
  size_t total = 0;
  for (size_t at = 0; at < static_cast<size_t>(listed);) {
    const std::string attribute = names.c_str() + at;
    at += attribute.size() + 1;
    std::string value(XATTR_SIZE_MAX, '\0');
    const ssize_t size = getxattr(path.c_str(), attribute.c_str(), value.data(), value.size());
    if (size < 0 && (errno == ENODATA || errno == ENOTSUP)) continue;
    if (size < 0) return system_failure("read the extended attributes of", name);
    value.resize(static_cast<size_t>(size));
    total += value.size() + attribute.size();
    found.emplace_back(attribute, std::move(value));
  }
  if (total > kXattrBytesMax) {
    return failure(E2BIG, name + " in a tmpfs has more than 512 KiB of extended attributes");
  }
  return found;
}

// POSIX access control lists are in the extended attributes.
Result<FileAttributes> attributes_of(int file, const struct stat& status, const std::string& name) {
  FileAttributes attributes{.mode = status.st_mode,
                            .uid = status.st_uid,
                            .gid = status.st_gid,
                            .access_ns = ns_of(status.st_atim),
                            .change_ns = ns_of(status.st_mtim),
                            .xattrs = {}};
  if (S_ISLNK(status.st_mode)) return attributes;
  auto xattrs = read_xattrs(own_path(file), name);
  if (!xattrs) return failure(xattrs.error());
  attributes.xattrs = std::move(*xattrs);
  return attributes;
}

FileStatus status_of(const struct stat& status, bool is_in_doubt) {
  return {.size_bytes = static_cast<uint64_t>(status.st_size),
          .change_ns = ns_of(status.st_mtim),
          .status_ns = ns_of(status.st_ctim),
          .looked_ns = realtime_ns(),
          .is_in_doubt = is_in_doubt};
}

}  // namespace

bool may_have_changed(const FileStatus& sent, const FileStatus& now) {
  if (sent.is_in_doubt || now.is_in_doubt) return true;
  if (sent.size_bytes != now.size_bytes) return true;
  if (sent.change_ns != now.change_ns || sent.status_ns != now.status_ns) return true;
  return sent.status_ns > sent.looked_ns - kClockTickNs;
}

// One walk through all files.
class FileRounds::Walk {
 public:
  Walk(FileRounds& rounds, const Sink& sink, bool is_last)
      : rounds_(rounds), sink_(sink), is_last_(is_last), buffer_(kFileDataMaxBytes, '\0') {}

  // Lists all files with their status. Comes before UnseenWrites::take().
  Status look();
  Status send(const std::optional<FileSet>& in_doubt);
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Node {
    std::string name;
    struct stat status {};
    int64_t looked_ns = 0;
    std::vector<Node> children;
  };

  // `path`: of the directory, as the processes see it; for errors.
  Status list(int directory, const std::string& path, Node& into, size_t depth);
  Status send_contents(int directory, const std::string& path, const Node& of, uint32_t tmpfs,
                       const std::optional<FileSet>& in_doubt);
  Status send_file(int directory, const std::string& path, const Node& node, uint32_t tmpfs,
                   bool is_in_doubt);
  Status send_names(int directory, const std::string& path, const Node& of, dev_t device);
  Status put(const FileRecord& record) { return sink_(record); }

  FileRounds& rounds_;
  const Sink& sink_;
  const bool is_last_;
  std::string buffer_;
  std::vector<Node> roots_;
  uint64_t sent_bytes_ = 0;
};

Status FileRounds::Walk::look() {
  for (const PrivateTmpfs& tmpfs : rounds_.all_) {
    Node& root = roots_.emplace_back();
    if (fstat(tmpfs.root.get(), &root.status) != 0) {
      return system_failure("inspect the tmpfs at", tmpfs.mountpoint);
    }
    const Status listed = list(tmpfs.root.get(), tmpfs.mountpoint, root, 0);
    if (!listed) return listed;
  }
  return {};
}

Status FileRounds::Walk::list(int directory, const std::string& path, Node& into, size_t depth) {
  if (depth > kFileDepthMax) {
    return failure(ELOOP, fmt::format("list {}: more than {} nested directories in a tmpfs", path,
                                      kFileDepthMax));
  }
  // A directory that was removed meanwhile is empty.
  const auto entries = list_directory(own_path(directory));
  if (!entries) {
    return system_failure("read the directory", path, entries.error().errno_value);
  }
  for (const auto& entry : *entries) {
    const std::string name = entry.path().filename();
    Node node{.name = name};
    node.looked_ns = realtime_ns();
    if (fstatat(directory, name.c_str(), &node.status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (is_gone(errno)) continue;
      return system_failure("inspect", path_in(path, name));
    }
    if (S_ISDIR(node.status.st_mode)) {
      const std::string its_path = path_in(path, name);
      const UniqueFd below(
          openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below && is_gone(errno)) continue;
      if (!below) return system_failure("open the directory", its_path);
      if (Status listed = list(below.get(), its_path, node, depth + 1); !listed) return listed;
    }
    into.children.push_back(std::move(node));
  }
  return {};
}

Status FileRounds::Walk::send(const std::optional<FileSet>& in_doubt) {
  for (uint32_t i = 0; i < roots_.size(); ++i) {
    const PrivateTmpfs& tmpfs = rounds_.all_[i];
    if (rounds_.round_ == 1) {
      if (Status put_it = put(file_record::Tmpfs{i, tmpfs.options}); !put_it) return put_it;
    }
    const Status sent = send_contents(tmpfs.root.get(), tmpfs.mountpoint, roots_[i], i, in_doubt);
    if (!sent) return sent;
  }
  // Drops the files that are gone, so that the target has room for what the next round sends.
  for (auto sent = rounds_.sent_.begin(); sent != rounds_.sent_.end();) {
    if (sent->second.round == rounds_.round_) {
      ++sent;
      continue;
    }
    const auto of = std::find_if(rounds_.all_.begin(), rounds_.all_.end(), [&](const auto& tmpfs) {
      return tmpfs.device == sent->first.first;
    });
    const auto number = static_cast<uint32_t>(of - rounds_.all_.begin());
    if (Status put_it = put(file_record::Drop{number, sent->second.content.number()}); !put_it)
      return put_it;
    sent = rounds_.sent_.erase(sent);
  }
  if (!is_last_) return {};
  for (uint32_t i = 0; i < roots_.size(); ++i) {
    const PrivateTmpfs& tmpfs = rounds_.all_[i];
    auto attributes = attributes_of(tmpfs.root.get(), roots_[i].status, tmpfs.mountpoint);
    if (!attributes) return failure(attributes.error());
    if (Status put_it = put(file_record::Tree{i, std::move(*attributes)}); !put_it) return put_it;
    for (const DeletedFile& deleted : rounds_.deleted_) {
      if (deleted.tmpfs != i) continue;
      if (Status put_it = put(deleted.entry); !put_it) return put_it;
    }
    const Status named = send_names(tmpfs.root.get(), tmpfs.mountpoint, roots_[i], tmpfs.device);
    if (!named) return named;
  }
  return {};
}

Status FileRounds::Walk::send_contents(int directory, const std::string& path, const Node& of,
                                       uint32_t tmpfs, const std::optional<FileSet>& in_doubt) {
  const dev_t device = rounds_.all_[tmpfs].device;
  for (const Node& node : of.children) {
    Status sent;
    if (S_ISDIR(node.status.st_mode)) {
      const std::string its_path = path_in(path, node.name);
      const UniqueFd below(
          openat(directory, node.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below && is_gone(errno) && !is_last_) continue;
      if (!below) return system_failure("open the directory", its_path);
      sent = send_contents(below.get(), its_path, node, tmpfs, in_doubt);
    } else if (S_ISREG(node.status.st_mode)) {
      const bool is_in_doubt = !in_doubt || in_doubt->contains({device, node.status.st_ino});
      sent = send_file(directory, path, node, tmpfs, is_in_doubt);
    }
    if (!sent) return sent;
  }
  return {};
}

Status FileRounds::Walk::send_file(int directory, const std::string& path, const Node& node,
                                   uint32_t tmpfs, bool is_in_doubt) {
  const dev_t device = rounds_.all_[tmpfs].device;
  const auto [found, is_new] = rounds_.sent_.try_emplace({device, node.status.st_ino});
  SentFile& sent = found->second;
  if (is_new) sent.content = SentContent(tmpfs, rounds_.next_number_++);
  const bool has_other_name = !is_new && sent.round == rounds_.round_;
  sent.round = rounds_.round_;
  if (has_other_name) return {};
  FileStatus status = status_of(node.status, is_in_doubt);
  status.looked_ns = node.looked_ns;
  if (!is_new && !may_have_changed(sent.status, status)) return {};
  const UniqueFd file(openat(directory, node.name.c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const int why = errno;
  struct stat opened {};
  const bool is_same = file && fstat(file.get(), &opened) == 0 && S_ISREG(opened.st_mode) &&
                       opened.st_ino == node.status.st_ino;
  if (!is_same) {
    if (is_last_ && !file) return system_failure("open", path_in(path, node.name), why);
    if (is_last_) {
      return failure(ESTALE, "open " + path_in(path, node.name) +
                                 ": it was replaced while the processes stood still");
    }
    // Another file has replaced this one meanwhile: the next round looks again.
    sent.status.looked_ns = 0, sent.status.is_in_doubt = true;
    return {};
  }
  if (Status put_it = sent.content.send_size(status.size_bytes, sink_); !put_it) return put_it;
  sent.status = status;
  const auto bytes =
      sent.content.send_changed(file.get(), reader_of(file.get(), std::span(buffer_)), sink_);
  if (!bytes) {
    return failure(bytes.error().errno_value,
                   "send " + path_in(path, node.name) + ": " + bytes.error().message);
  }
  sent_bytes_ += *bytes;
  return {};
}

Status FileRounds::Walk::send_names(int directory, const std::string& path, const Node& of,
                                    dev_t device) {
  for (const Node& node : of.children) {
    const bool is_directory = S_ISDIR(node.status.st_mode);
    // Files of the other kinds may have several names, too.
    const auto [found, is_new] = rounds_.sent_.try_emplace({device, node.status.st_ino});
    SentFile& sent = found->second;
    if (is_new) sent.content = SentContent(0, rounds_.next_number_++);
    if (sent.is_named && !is_directory) {
      if (Status put_it = put(file_record::Link{node.name, sent.content.number()}); !put_it)
        return put_it;
      continue;
    }
    sent.is_named = true;
    const std::string its_path = path_in(path, node.name);
    const UniqueFd file(openat(directory, node.name.c_str(),
                               is_directory ? O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
                                            : O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!file) return system_failure("open", its_path);
    auto attributes = attributes_of(file.get(), node.status, its_path);
    if (!attributes) return failure(attributes.error());
    file_record::Entry entry{
        .name = node.name,
        .file = sent.content.number(),
        .size_bytes = static_cast<uint64_t>(S_ISREG(node.status.st_mode) ? node.status.st_size : 0),
        .device = node.status.st_rdev,
        .target = {},
        .attributes = std::move(*attributes)};
    if (S_ISLNK(node.status.st_mode)) {
      std::array<char, PATH_MAX> target{};
      const ssize_t n = readlinkat(file.get(), "", target.data(), target.size());
      if (n <= 0) return system_failure("read the link", its_path, n < 0 ? errno : EIO);
      entry.target.assign(target.data(), static_cast<size_t>(n));
    }
    if (Status put_it = put(entry); !put_it) return put_it;
    if (!is_directory) continue;
    if (Status below = send_names(file.get(), its_path, node, device); !below) return below;
  }
  return put(file_record::Leave{});
}

Result<uint64_t> FileRounds::send_last(pid_t root, const Sink& sink,
                                       std::vector<DeletedFile> deleted) {
  deleted_ = std::move(deleted);
  return send(root, sink, true);
}

// A write after the look changes the times that the next look sees, or take() reports it in this
// round or the next one. So the order is: the status of all files, the unseen writes, the contents.
Result<uint64_t> FileRounds::send(pid_t root, const Sink& sink, bool is_last) {
  ++round_;
  Walk walk(*this, sink, is_last);
  if (Status looked = walk.look(); !looked) return failure(looked.error());
  const auto in_doubt = unseen_writes_.take(root);
  if (!in_doubt) return failure(in_doubt.error());
  if (Status sent = walk.send(*in_doubt); !sent) return failure(sent.error());
  return walk.sent_bytes();
}

}  // namespace ppmr
