// The images of a sealed checkpoint. CRIU must read the same images that the policy check has read.
// A sealed checkpoint cannot change, but it can be removed, and another checkpoint can take its
// name. So this object keeps the checkpoint's directory open, and its small images in a bundle
// (mount).
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
    std::string control_socket;  // socket of the target's daemon
    std::string mountpoint;
    std::string checkpoint;
    uint64_t inode = 0;  // inode of the checkpoint when it was sealed
  };

  // Opens the images. Errors: those of the file system and of the daemon; ESTALE if the checkpoint
  // was replaced; ELOOP if it has symbolic links that CRIU does not make.
  static Result<SealedImages> open(Place place);

  // Opens the images of an epoch (migration/epochs): no daemon has them. Errors: those of the file
  // system; ELOOP.
  static Result<SealedImages> open_epoch(const std::string& directory);

  // Returns a path that any process may use as long as this object exists. The path does not
  // contain the name of the checkpoint: with_names() makes a message readable.
  std::string path() const;
  // Returns null if the daemon sent no bundle, because it frees the images when they are read.
  const ImageBundle* bundle() const { return bundle_ ? &*bundle_ : nullptr; }
  std::string bundle_path() const;  // empty: there is no bundle
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
