#include "preflight/file_digest.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <openssl/evp.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

namespace ppmr {
namespace {

// The build ID is in the first few dozen bytes of the notes.
constexpr size_t kNotesMaxBytes = 64 << 10;
constexpr size_t kHeadersMax = 1024;

std::string hexadecimal(const unsigned char* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

template <typename Record>
bool read_at(int fd, uint64_t offset, Record& record) {
  return pread(fd, &record, sizeof(record), static_cast<off_t>(offset)) == sizeof(record);
}

// Returns the build ID in a sequence of 4-byte aligned notes. A note has: name size, content size,
// type, name, content.
std::string build_id_in(const std::vector<char>& notes) {
  const auto aligned = [](size_t size) { return (size + 3) & ~size_t{3}; };
  size_t at = 0;
  while (notes.size() - at >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data() + at, sizeof(note));
    at += sizeof(note);
    const size_t name_size = aligned(note.n_namesz), content_size = aligned(note.n_descsz);
    if (name_size > notes.size() - at || content_size > notes.size() - at - name_size) return "";
    const char* name = notes.data() + at;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
      return hexadecimal(reinterpret_cast<const unsigned char*>(name) + name_size, note.n_descsz);
    }
    at += name_size + content_size;
  }
  return "";
}

// Returns a digest of the handle that the NFS client has for the file. It contains the server's
// handle and number of the file.
std::string nfs_handle_of(int fd) {
  alignas(file_handle) std::array<char, sizeof(file_handle) + MAX_HANDLE_SZ> buffer{};
  auto* handle = reinterpret_cast<file_handle*>(buffer.data());
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  if (name_to_handle_at(fd, "", handle, &mount, AT_EMPTY_PATH) != 0) return "";
  return digest_of({buffer.data() + sizeof(file_handle), handle->handle_bytes}).value_or("");
}

}  // namespace

Result<std::string> digest_of(int fd, uint64_t size_max_bytes, const std::string& path) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1)
    return failure(ENOMEM, "compute the digest of " + path + ": OpenSSL lacks SHA-256");
  std::vector<char> buffer(256 << 10);
  uint64_t offset = 0;
  for (;;) {
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure("read", path);
    if (got == 0) break;
    offset += static_cast<uint64_t>(got);
    if (offset > size_max_bytes)
      return failure(EFBIG,
                     fmt::format("compute the digest of {}: the file is longer than {} bytes", path,
                                 size_max_bytes));
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(got));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  return hexadecimal(digest, size);
}

Result<std::string> digest_of(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    return failure(ENOMEM, "compute a digest: OpenSSL lacks SHA-256");
  }
  return hexadecimal(digest, size);
}

std::string build_id_of(int fd) {
  Elf64_Ehdr header;
  if (!read_at(fd, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64)
    return "";
  for (size_t i = 0; i < header.e_phnum && i < kHeadersMax; ++i) {
    Elf64_Phdr segment;
    if (!read_at(fd, header.e_phoff + i * sizeof(segment), segment)) return "";
    if (segment.p_type != PT_NOTE || segment.p_filesz > kNotesMaxBytes) continue;
    std::vector<char> notes(segment.p_filesz);
    if (pread(fd, notes.data(), notes.size(), static_cast<off_t>(segment.p_offset)) !=
        static_cast<ssize_t>(notes.size()))
      continue;
    if (std::string id = build_id_in(notes); !id.empty()) return id;
  }
  return "";
}

std::string filesystem_id_of(int fd) {
  struct statfs system {};
  if (fstatfs(fd, &system) != 0) return "";
  if (system.f_type == NFS_SUPER_MAGIC) return nfs_handle_of(fd);
  const auto& id = system.f_fsid.__val;
  if (id[0] == 0 && id[1] == 0) return "";
  return fmt::format("{:x}-{:x}", static_cast<uint32_t>(id[0]), static_cast<uint32_t>(id[1]));
}

bool is_network_filesystem(const std::string& type) {
  static const std::set<std::string_view> kTypes = {
      "nfs",    "nfs4", "cifs",  "smb3", "ceph", "lustre",     "gpfs",
      "beegfs", "afs",  "pvfs2", "gfs2", "9p",   "fuse.sshfs", "fuse.glusterfs"};
  return kTypes.contains(type);
}

}  // namespace ppmr
