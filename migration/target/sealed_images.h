// The images of a sealed checkpoint, held so that CRIU reads the same images that were judged. A
// sealed checkpoint cannot change, but it can be removed, and another one can take its name. So
// this object has its directory open, and its small images in a bundle (mount).
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "mount/image_bundle.h"

namespace ppmr {

// Threads: one.
class SealedImages {
 public:
  struct Place {
    std::string control_socket;  // of the target's daemon
    std::string mountpoint;
    std::string checkpoint;
    std::string directory;  // of the images, in the checkpoint; empty: the checkpoint itself
    uint64_t inode = 0;     // of the checkpoint, as it was sealed
  };

  // Errors: of the file system and of the daemon; ESTALE if the checkpoint was replaced; ELOOP if
  // it has symbolic links that CRIU does not make.
  static Result<SealedImages> open(Place place);

  // For any process, as long as this object exists. The name of the checkpoint in it is hidden:
  // with_names() makes a message readable.
  std::string path() const;
  // Null if the daemon gave none: the images follow rounds of pre-copy, or are consumed when read.
  const ImageBundle* bundle() const { return bundle_ ? &*bundle_ : nullptr; }
  std::string bundle_path() const;  // empty: none
  Error with_names(Error error) const;

 private:
  explicit SealedImages(Place place) : place_(std::move(place)) {}
  Status request_bundle();
  std::string top() const;

  Place place_;
  UniqueFd checkpoint_;  // O_PATH
  UniqueFd bundle_file_;
  std::optional<ImageBundle> bundle_;
};

}  // namespace ppmr
