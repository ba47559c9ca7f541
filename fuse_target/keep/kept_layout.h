// The file of a kept checkpoint, in blocks of 4 KiB. Numbers have the byte order of x86.
//
//   block 0            header: the salt of the file's keys, the id of the operator's key, the name
//   then               a CRC32C for each data block, 1,024 in a block       XTS-AES-256
//   then               the stored blocks of all files, one after the other  XTS-AES-256
//   then               the index (kept_index.h)                             AES-256-GCM
//   the last 64 bytes  trailer: the number of data blocks, the length and the tag of the index
//
// Each file has its own keys, so an attacker cannot replace a block by a block of another file, or
// of an older one. The tag of the index covers header and trailer. The index has the checksum of
// each block of checksums, and a block of checksums has the checksums of data blocks. So a read
// verifies the data blocks that it reads, and reads only their blocks of checksums besides.
//
// Rejected: AES-256-GCM for the data, too. Pagers read borrowed spill files and kept checkpoints
// with the same code. Without the key it is impossible to change a block so that it fits its
// checksum (spill_file.h). Rejected: one file for each file of a checkpoint. A checkpoint of 10,000
// small files would need 10,000 syncs, and a crash could leave only some of its files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/block_cipher.h"
#include "base/locked.h"
#include "base/result.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

inline constexpr size_t kKeptBlockBytes = BlockCipher::kBlockBytes;
inline constexpr size_t kChecksumsPerBlock = kKeptBlockBytes / sizeof(uint32_t);
inline constexpr uint64_t kIndexMaxBytes = uint64_t{1} << 30;
inline constexpr uint32_t kKeptVersion = 1;

struct KeptHeader {
  std::array<char, 8> magic{'p', 'p', 'm', 'r', 'k', 'e', 'p', 't'};
  uint32_t version = kKeptVersion;
  uint32_t name_bytes = 0;
  std::array<uint8_t, 32> salt{};
  std::array<char, 16> key_id{};  // hexadecimal, see key_id()
  std::array<char, 256> name{};   // name of the checkpoint; an operator can read it without the key
};
static_assert(sizeof(KeptHeader) == 320);

struct KeptTrailer {
  uint64_t data_blocks = 0;
  uint64_t index_bytes = 0;
  std::array<uint8_t, 16> tag{};  // of the index
  std::array<uint8_t, 24> unused{};
  std::array<char, 8> magic{'k', 'e', 'p', 't', 'e', 'n', 'd', '.'};
};
static_assert(sizeof(KeptTrailer) == 64);

// The places at which the parts of a file with `data_blocks` data blocks begin.
struct KeptPlaces {
  explicit KeptPlaces(uint64_t data_blocks)
      : checksum_blocks((data_blocks + kChecksumsPerBlock - 1) / kChecksumsPerBlock),
        first_data_block(1 + checksum_blocks),
        index_offset((first_data_block + data_blocks) * kKeptBlockBytes) {}

  static constexpr uint64_t kFirstChecksumBlock = 1;
  const uint64_t checksum_blocks;
  const uint64_t first_data_block;
  const uint64_t index_offset;  // in bytes
};

// The keys of one file, derived from the operator's key and the salt of the header.
struct KeptFileKeys {
  BlockCipher::Key blocks{};
  SharedKey index{};
};
void derive_kept_keys(const SharedKey& key, const KeptHeader& header, KeptFileKeys& keys);

// Returns a header with a new salt. Errors: ENAMETOOLONG; EIO if the system has no random numbers.
Result<KeptHeader> make_kept_header(const std::string& name, const SharedKey& key);

// Encrypts and decrypts the index in place. The tag also authenticates the header, and the trailer
// without the tag. Errors: EIO from OpenSSL; EBADMSG if the tag is wrong.
Status encrypt_index(const KeptFileKeys& keys, const KeptHeader& header, KeptTrailer& trailer,
                     std::span<std::byte> index);
Status decrypt_index(const KeptFileKeys& keys, const KeptHeader& header, const KeptTrailer& trailer,
                     std::span<std::byte> index);

}  // namespace ppmr
