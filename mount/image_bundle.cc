#include "mount/image_bundle.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace ppmr {
namespace {

constexpr uint64_t kMagic = 0x31656c646e756250;  // "Pbundle1"
constexpr uint64_t kNameMaxBytes = 255;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

// No byte order or version is needed: the same machine and the same version of ppmr write and read
// a bundle.
struct Header {
  uint64_t magic = kMagic;
  uint64_t files = 0;
  uint64_t is_flat = 0;
};

struct FileHeader {
  uint32_t name_bytes = 0;
  uint32_t is_included = 0;
  uint64_t size_bytes = 0;
};

tl::unexpected<Error> malformed(const std::string& what) {
  return failure(EPROTO, "bundle of images: " + what);
}

// Returns true for the name of an entry of a directory, and false for a path that leads elsewhere.
bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= kNameMaxBytes && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

}  // namespace

// ---- Writing -----------------------------------------------------------------------------------

Result<BundleWriter> BundleWriter::create(const std::vector<File>& files, bool is_flat) {
  BundleWriter writer;
  uint64_t end = sizeof(Header);
  uint64_t included_bytes = 0;
  for (const File& file : files) {
    end += sizeof(FileHeader) + file.name.size();
    writer.places_.push_back({end, file.included ? file.size_bytes : 0});
    if (!file.included) continue;
    if (file.size_bytes > kBundleMaxBytes - included_bytes) return malformed("too many bytes");
    included_bytes += file.size_bytes;
    end += file.size_bytes;
  }
  writer.memfd_ = UniqueFd(::memfd_create("ppmr-bundle", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!writer.memfd_ || ::ftruncate(writer.memfd_.get(), static_cast<off_t>(end)) != 0) {
    return system_failure("create", "a bundle of images");
  }
  auto mapped = MappedFile::map(writer.memfd_, MappedFile::Access::kReadAndWrite);
  if (!mapped) return failure(mapped.error());
  writer.mapped_ = std::move(*mapped);
  std::byte* const bytes = writer.mapped_.writable_bytes().data();
  const Header header{.files = files.size(), .is_flat = is_flat};
  std::memcpy(bytes, &header, sizeof(header));
  for (size_t i = 0; i < files.size(); ++i) {
    const File& file = files[i];
    const FileHeader described{static_cast<uint32_t>(file.name.size()), file.included,
                               file.size_bytes};
    std::byte* const name = bytes + writer.places_[i].offset - file.name.size();
    std::memcpy(name - sizeof(described), &described, sizeof(described));
    std::memcpy(name, file.name.data(), file.name.size());
  }
  return writer;
}

std::span<std::byte> BundleWriter::bytes_of(size_t file) const {
  const Place& place = places_.at(file);
  return mapped_.writable_bytes().subspan(place.offset, place.size_bytes);
}

Result<UniqueFd> BundleWriter::finish() {
  mapped_ = MappedFile();  // the kernel refuses the seal while a writable mapping exists
  if (::fcntl(memfd_.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_failure("seal", "a bundle of images");
  }
  return std::move(memfd_);
}

// ---- Reading -----------------------------------------------------------------------------------

Result<ImageBundle> ImageBundle::open(const UniqueFd& memfd) {
  if ((::fcntl(memfd.get(), F_GET_SEALS) & kSeals) != kSeals) return malformed("it is not sealed");
  auto mapped = MappedFile::map(memfd);
  if (!mapped) return failure(mapped.error());
  ImageBundle bundle;
  bundle.mapped_ = std::move(*mapped);
  if (Status parsed = bundle.parse(); !parsed) return failure(parsed.error());
  return bundle;
}

Status ImageBundle::parse() {
  std::span<const std::byte> rest = mapped_.bytes();
  const auto take = [&rest](uint64_t length) {
    const auto taken = rest.first(length);
    rest = rest.subspan(length);
    return taken;
  };
  Header header;
  if (rest.size() < sizeof(header)) return malformed("it is too short");
  std::memcpy(&header, take(sizeof(header)).data(), sizeof(header));
  if (header.magic != kMagic || header.files > kBundleFilesMax) return malformed("not a bundle");
  is_flat_ = header.is_flat == 1;
  for (uint64_t i = 0; i < header.files; ++i) {
    FileHeader file;
    if (rest.size() < sizeof(file)) return malformed("it is too short");
    std::memcpy(&file, take(sizeof(file)).data(), sizeof(file));
    if (rest.size() < file.name_bytes) return malformed("it is too short");
    const auto name_bytes = take(file.name_bytes);
    const std::string_view name(reinterpret_cast<const char*>(name_bytes.data()),
                                name_bytes.size());
    if (!is_plain(name)) return malformed("the name of a file is empty, too long or a path");
    if (included_.contains(name) || left_out_.contains(name)) {
      return malformed("two files have the same name");
    }
    if (file.is_included != 1) {
      left_out_.emplace(name, file.size_bytes);
      continue;
    }
    if (rest.size() < file.size_bytes) return malformed("it is too short");
    included_.emplace(name, take(file.size_bytes));
  }
  return rest.empty() ? Status{} : malformed("it is too long");
}

const std::span<const std::byte>* ImageBundle::find(std::string_view name) const {
  const auto found = included_.find(name);
  return found == included_.end() ? nullptr : &found->second;
}

}  // namespace ppmr
