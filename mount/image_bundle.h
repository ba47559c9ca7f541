// The small images of a checkpoint in one memfd. The target's daemon passes the bundle of a sealed
// checkpoint to a restore, and the source's daemon receives the bundle of a dump. A tree of 300
// processes has 3,000 images. Through the mount, each image costs four round trips: to look it up,
// to open it, to read or write it, and to close it.
//
//   | header | name, size | bytes | name, size | bytes | name, size | ...
//
// The memfd is sealed, so CRIU reads exactly the images that were checked, even if the checkpoint
// is removed or replaced. The bundle lists larger files without their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

inline constexpr uint64_t kBundleMaxBytes = 64 << 20;  // limit for the bytes of all included files
inline constexpr size_t kBundleFilesMax = 1'000'000;

// Threads: one.
class BundleWriter {
 public:
  struct File {
    std::string name;
    uint64_t size_bytes = 0;
    bool included = false;  // true: its bytes are in the bundle
  };

  // `is_flat`: the checkpoint contains only these files. Errors: the errors of the file system;
  // EPROTO for more than kBundleMaxBytes.
  static Result<BundleWriter> create(const std::vector<File>& files, bool is_flat);
  // Returns the place for the bytes of an included file. The place is filled with zeros.
  std::span<std::byte> bytes_of(size_t file) const;
  // Returns the sealed memfd. Called once. Errors: the errors of the file system.
  Result<UniqueFd> finish();

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };

  UniqueFd memfd_;
  MappedFile mapped_;
  std::vector<Place> places_;  // one for each file
};

// Threads: any, because a bundle does not change.
class ImageBundle {
 public:
  // Errors: EPROTO for a file that is not sealed or that no BundleWriter has written; the errors of
  // the file system.
  static Result<ImageBundle> open(const UniqueFd& memfd);

  bool is_flat() const { return is_flat_; }
  // The bytes of the included files, by name. Valid while the bundle exists.
  const std::map<std::string_view, std::span<const std::byte>>& included() const {
    return included_;
  }
  // The sizes of the other files, by name.
  const std::map<std::string_view, uint64_t>& left_out() const { return left_out_; }
  // Returns null if the bundle does not include the file.
  const std::span<const std::byte>* find(std::string_view name) const;

 private:
  Status parse();

  MappedFile mapped_;
  bool is_flat_ = false;
  std::map<std::string_view, std::span<const std::byte>> included_;
  std::map<std::string_view, uint64_t> left_out_;
};

}  // namespace ppmr
