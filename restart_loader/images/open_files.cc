#include "restart_loader/images/open_files.h"

#include <fcntl.h>

#include <functional>
#include <map>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kFilesMagic = 0x56303138;  // from criu/include/magic.h

bool is_written(const criu::reg_file_entry& file) { return (file.flags() & O_ACCMODE) != O_RDONLY; }

Status for_each_file(const std::string& path, const std::function<void(criu::file_entry&)>& visit) {
  auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  auto image = ImageReader::of(path, std::move(*bytes), kFilesMagic);
  if (!image) return failure(image.error());
  while (!image->at_end()) {
    criu::file_entry file;
    if (Status read = image->read(file); !read) return read;
    visit(file);
  }
  return {};
}

// Names that CRIU has written are absolute, or relative to the root directory.
std::string absolute(const std::string& name) { return name.starts_with('/') ? name : "/" + name; }

}  // namespace

Result<std::vector<OpenFile>> read_open_files(const std::string& path) {
  std::map<std::string, OpenFile> files;
  const Status read = for_each_file(path, [&](criu::file_entry& entry) {
    if (!entry.has_reg() || !entry.reg().has_size()) return;
    const criu::reg_file_entry& file = entry.reg();
    const bool writes = is_written(file);
    const bool appends = writes && (file.flags() & O_APPEND) != 0;
    const std::string name = absolute(file.name());
    const auto [known, is_new] =
        files.try_emplace(name, OpenFile{name, file.size(), writes, appends});
    if (is_new || !writes) return;
    OpenFile& before = known->second;
    before.is_appended = appends && (before.is_appended || !before.is_written);
    before.is_written = true;
  });
  if (!read) return failure(read.error());
  std::vector<OpenFile> list;
  for (auto& [name, file] : files) list.push_back(std::move(file));
  return list;
}

Status write_without_sizes(const std::string& from, const std::string& to) {
  ImageWriter image(kFilesMagic);
  const Status read = for_each_file(from, [&](criu::file_entry& entry) {
    if (entry.has_reg() && is_written(entry.reg())) entry.mutable_reg()->clear_size();
    image.add(entry);
  });
  return read ? image.write(to) : read;
}

}  // namespace ppmr
