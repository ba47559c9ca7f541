#include "restart_loader/images/tree_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/whole_file.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/criu_image.h"

namespace ppmr {
namespace {

// The largest image that this file reads: the image of a process with 65,530 areas
// (vm.max_map_count) has 8 MiB.
constexpr uint64_t kImageMaxBytes = 64 << 20;
constexpr uint64_t kImagesMaxBytes = 512 << 20;
constexpr size_t kImagesMax = 1'000'000;

// Magic numbers, from criu/include/magic.h.
constexpr uint32_t kNone = 0;  // for inventory.img
constexpr uint32_t kFdinfoMagic = 0x56213732;
constexpr uint32_t kCoreMagic = 0x55053847;
constexpr uint32_t kIdsMagic = 0x54432030;
constexpr uint32_t kFsMagic = 0x51403912;
constexpr uint32_t kMmMagic = 0x57492820;
constexpr uint32_t kRemapMagic = 0x59133954;
constexpr uint32_t kGhostMagic = 0x52583605;
constexpr uint32_t kMountsMagic = 0x55563928;
constexpr uint32_t kTtyInfoMagic = 0x59453036;
constexpr uint32_t kFilesMagic = 0x56303138;
constexpr uint32_t kQueuesMagic = 0x56264026;

// Names of images, without a number and ".img". Nothing that CRIU restores from these images
// outlives the processes, or gives them more than they could make themselves. CRIU reads some of
// them only with an option that ppmr judges separately (cgroup: --manage-cgroups).
constexpr std::array<std::string_view, 19> kHarmless = {
    "pstree",       "pagemap-",  "pagemap-shmem-", "pagemap-apart-", "pages-",
    "seccomp",      "timens-",   "cgroup",         "pipes-data",     "fifo-data",
    "tty-data",     "filelocks", "tcp-stream-",    "memfd",          "stats-dump",
    kPageIndexFile, "cpuinfo",   "carried-state",  "written-files"};
constexpr std::array<std::string_view, 19> kOfNamespaces = {
    "netdev-",    "netns-",     "ifaddr-",    "route-",     "route6-",   "rule-",  "iptables-",
    "ip6tables-", "nftables-",  "netns-ct-",  "netns-exp-", "utsns-",    "pidns-", "ipcns-var-",
    "ipcns-shm-", "ipcns-msg-", "ipcns-sem-", "userns-",    "tmpfs-dev-"};

bool is_in(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the part of the name before its number: "core-12.img" -> "core-". Numbers are decimal, or
// hexadecimal for ghost files and TCP streams.
std::string_view kind_of(std::string_view name) {
  for (std::string_view end : {".tar.gz.img", ".img"}) {
    if (!name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    break;
  }
  const size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || dash + 1 == name.size()) return name;
  const bool is_number =
      name.find_first_not_of("0123456789abcdef", dash + 1) == std::string_view::npos;
  return is_number ? name.substr(0, dash + 1) : name;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Reader {
 public:
  Reader(std::string directory, const ImageBundle* bundle)
      : directory_(std::move(directory)), bundle_(bundle) {}

  Result<TreeImages> read() {
    const bool is_listed = bundle_ != nullptr && bundle_->is_flat();
    if (Status read = is_listed ? read_listed() : read_directory(); !read) {
      return failure(read.error());
    }
    if (!has_inventory_ || !has_files_) {
      return failure(EPROTO, directory_ + ": has no inventory.img or no files.img");
    }
    return std::move(tree_);
  }

  Result<bool> dies_with_parent(const std::string& name) {
    if (Status read = read_one(name, kCoreMagic, tree_.cores); !read) return failure(read.error());
    return tree_.cores.back().second.thread_core().pdeath_sig() != 0;
  }

 private:
  Status read_listed() {
    Status read;
    for (const auto& [name, bytes] : bundle_->included()) {
      if (read) read = read_image(std::string(name));
    }
    for (const auto& [name, size] : bundle_->left_out()) {
      if (read) read = read_image(std::string(name));
    }
    return read;
  }

  Status read_directory() {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(directory_, error), end; entry != end && !error;
         entry.increment(error)) {
      if (Status done = read_image(entry->path().filename()); !done) return done;
    }
    return error ? system_failure("list", directory_, error.value()) : Status{};
  }

  Status read_image(const std::string& name) {
    if (++images_ > kImagesMax) {
      return failure(E2BIG, fmt::format("{}: more than {} images", directory_, kImagesMax));
    }
    const std::string_view kind = kind_of(name);
    if (kind == "core-") return read_one(name, kCoreMagic, tree_.cores);
    if (kind == "ids-") return read_one(name, kIdsMagic, tree_.ids);
    if (kind == "mm-") return read_one(name, kMmMagic, tree_.memories);
    if (kind == "fs-") return read_one(name, kFsMagic, tree_.directories);
    if (kind == "ghost-file-" || kind == "ghost-apart-")
      return read_one(name, kGhostMagic, tree_.ghosts);
    if (kind == "mountpoints-") return read_list(name, kMountsMagic, tree_.mounts);
    if (kind == "tty-info") return read_list(name, kTtyInfoMagic, tree_.terminals);
    if (kind == "remap-fpath") return read_list(name, kRemapMagic, tree_.remaps);
    if (kind == "inventory") return read_inventory(name);
    if (kind == "files") return read_files(name);
    if (kind == "fdinfo-") return read_descriptors(name);
    if (kind == "sk-queues") return read_queues(name);
    if (is_in(kOfNamespaces, kind)) {
      tree_.of_namespaces.push_back(name);
    } else if (!is_in(kHarmless, kind)) {
      tree_.others.push_back(name);
    }
    return {};
  }

  Result<ImageReader> open(const std::string& name, uint32_t magic) {
    const std::string path = directory_ + "/" + name;
    const auto* const bundled = bundle_ != nullptr ? bundle_->find(name) : nullptr;
    std::error_code error;
    const uint64_t size = bundled ? bundled->size() : std::filesystem::file_size(path, error);
    if (error) return system_failure("read the size of", path, error.value());
    if (size > kImageMaxBytes || size > kImagesMaxBytes - bytes_) {
      return failure(E2BIG, fmt::format("{}: too large to be checked ({} bytes)", path, size));
    }
    bytes_ += size;
    auto bytes = bundled ? Result<std::string>(text_of(*bundled)) : read_whole_file(path);
    if (!bytes) return failure(bytes.error());
    return magic == kNone ? ImageReader::of_inventory(path, std::move(*bytes))
                          : ImageReader::of(path, std::move(*bytes), magic);
  }

  template <typename Message>
  Status read_one(const std::string& name, uint32_t magic, ByImage<Message>& list) {
    auto image = open(name, magic);
    if (!image) return failure(image.error());
    Message message;
    if (Status read = image->read_exactly(message); !read) return read;
    list.emplace_back(name, std::move(message));
    return {};
  }

  template <typename Message>
  Status read_list(const std::string& name, uint32_t magic, std::vector<Message>& list) {
    return for_each<Message>(name, magic, [&](ImageReader&, Message& message) -> Status {
      list.push_back(std::move(message));
      return {};
    });
  }

  template <typename Message, typename Visit>
  Status for_each(const std::string& name, uint32_t magic, Visit&& visit) {
    auto image = open(name, magic);
    if (!image) return failure(image.error());
    while (!image->at_end()) {
      Message message;
      if (Status read = image->read_exactly(message); !read) return read;
      if (Status visited = visit(*image, message); !visited) return visited;
    }
    return {};
  }

  Status read_inventory(const std::string& name) {
    ByImage<tree_images::inventory_entry> found;
    if (Status read = read_one(name, kNone, found); !read) return read;
    tree_.node = found.front().second.root_ids();
    has_inventory_ = true;
    return {};
  }

  Status read_files(const std::string& name) {
    has_files_ = true;
    using File = tree_images::file_entry;
    return for_each<File>(name, kFilesMagic, [&](ImageReader& image, File& file) -> Status {
      const uint32_t id = file.id();
      // CRIU finds a file by the id in the message of the file's type.
      if (file.has_reg() && file.reg().id() != id) return image.damaged("a file has two ids");
      if (!tree_.files.emplace(id, std::move(file)).second) {
        return image.damaged(fmt::format("two files with the id {}", id));
      }
      return {};
    });
  }

  Status read_descriptors(const std::string& name) {
    using Descriptor = tree_images::fdinfo_entry;
    return for_each<Descriptor>(name, kFdinfoMagic, [&](ImageReader&, Descriptor& found) -> Status {
      tree_.descriptors.insert(found.id());
      return {};
    });
  }

  Status read_queues(const std::string& name) {
    using Packet = tree_images::sk_packet_entry;
    return for_each<Packet>(name, kQueuesMagic, [&](ImageReader& image, Packet& packet) -> Status {
      if (packet.scm_size() > 0) tree_.has_files_in_flight = true;
      return image.skip(packet.length());
    });
  }

  const std::string directory_;
  const ImageBundle* const bundle_;
  size_t images_ = 0;
  uint64_t bytes_ = 0;
  bool has_inventory_ = false;
  bool has_files_ = false;
  TreeImages tree_;
};

}  // namespace

Result<TreeImages> read_tree_images(const std::string& directory, const ImageBundle* bundle) {
  return Reader(directory, bundle).read();
}

Result<bool> dies_with_parent(const std::string& directory, const ImageBundle* bundle, pid_t pid) {
  return Reader(directory, bundle).dies_with_parent(fmt::format("core-{}.img", pid));
}

}  // namespace ppmr
