#include "migration/source/dump_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "mount/detached_mount.h"
#include "mount/image_bundle.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

// DumpImages copies larger files into the checkpoint instead.
constexpr uint64_t kSmallMaxBytes = uint64_t{1} << 20;

// Returns the name of a pages file. CRIU counts from 1: first the files of the processes, then the
// files of the shared memories.
std::string pages_file(size_t number) { return fmt::format("pages-{}.img", number); }

// Does not use read_whole_file(), which would clear a megabyte for each file while the tree is
// frozen.
Status read_file(const std::string& path, std::span<std::byte> bytes) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  while (!bytes.empty()) {
    const ssize_t n = read(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_failure("read", path);
    if (n == 0) return failure(EIO, "read " + path + ": it has become shorter");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

Result<size_t> count_pages_files(pid_t root) {
  const auto processes = read_tree(root);
  if (!processes) return failure(processes.error());
  std::set<std::pair<std::string, uint64_t>> shared;
  for (const ProcessStat& process : *processes) {
    const auto mappings = read_mappings(process.pid);
    if (!mappings) continue;  // the process has ended
    for (const Mapping& mapping : *mappings) {
      if (mapping.shared) shared.emplace(mapping.device, mapping.inode);
    }
  }
  return processes->size() + shared.size();
}

Result<DumpImages> DumpImages::create(std::string checkpoint, size_t links) {
  // The tmpfs may take up to half of the memory, which is the default.
  auto memory = detached_mount("tmpfs", {{"mode", "0700"}});
  if (!memory) {
    return failure(memory.error().errno_value,
                   "make room for the images of the dump: " + memory.error().message);
  }
  for (size_t number = 1; number <= links; ++number) {
    const std::string name = pages_file(number);
    if (symlinkat((checkpoint + "/" + name).c_str(), memory->get(), name.c_str()) != 0) {
      return system_failure("create a symbolic link to", checkpoint + "/" + name);
    }
  }
  return DumpImages(std::move(checkpoint), links, std::move(*memory));
}

bool DumpImages::is_link_to_pages(const std::string& name) const {
  size_t number = 0;
  return std::sscanf(name.c_str(), "pages-%zu.img", &number) == 1 && number <= links_ &&
         name == pages_file(number);
}

std::string DumpImages::path() const { return path_of_descriptor(memory_); }

Result<UniqueFd> DumpImages::bundle() const {
  std::vector<BundleWriter::File> files;
  uint64_t left_bytes = kBundleMaxBytes;
  std::error_code error;
  for (fs::directory_iterator entry(path(), error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    const fs::file_type type = entry->symlink_status(error).type();
    if (type == fs::file_type::symlink && is_link_to_pages(name)) continue;
    if (type != fs::file_type::regular) {
      return failure(EINVAL, "bundle the images of the dump: " + name + " is not a regular file");
    }
    const uint64_t size_bytes = entry->file_size(error);
    if (error) break;
    if (size_bytes <= std::min(kSmallMaxBytes, left_bytes)) {
      left_bytes -= size_bytes;
      files.push_back({.name = name, .size_bytes = size_bytes, .included = true});
    } else if (!fs::copy_file(entry->path(), fs::path(checkpoint_) / name, error)) {
      return failure(error.value(),
                     fmt::format("copy {} into {}: {}", name, checkpoint_, error.message()));
    }
  }
  if (error) return failure(error.value(), "list the images of the dump: " + error.message());
  auto writer = BundleWriter::create(files, /*is_flat=*/true);
  if (!writer) return failure(writer.error());
  for (size_t i = 0; i < files.size(); ++i) {
    const Status read = read_file(path() + "/" + files[i].name, writer->bytes_of(i));
    if (!read) return failure(read.error());
  }
  return writer->finish();
}

}  // namespace ppmr
