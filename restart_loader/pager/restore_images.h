// The images from which CRIU restores: those of the checkpoint, with some of them in memory.
//
//   CRIU reads      an overlay, or the tmpfs alone if CRIU needs nothing else
//     tmpfs           the small images, from the bundle (mount), and those that are
//                     changed for the restore (shared_pages.h)
//     checkpoint      the mount of the target: the large images
//
// An image costs CRIU a round trip to the daemon to look it up, to open, to read and to close it;
// and so does a look for one that does not exist.
//
// Nothing is mounted in a directory: CRIU restores containers from here, too, whose root is not
// that of this node, and nothing is left when this process ends.
//
// Rejected: symbolic links to the images (they lead nowhere in the root of a container).
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "mount/image_bundle.h"

namespace ppmr {

// Threads: one.
class RestoreImages {
 public:
  // `bundle`: the path of the bundle of the small images; empty: none. Errors: of the file system;
  // EPROTO for a damaged bundle.
  static Result<RestoreImages> open(std::string directory, const std::string& bundle = "");

  // Of the checkpoint.
  const std::string& directory() const { return directory_; }
  // Where to read an image.
  std::string path_of(const std::string& name) const;
  // Where to write images that are new, or that take the place of others. Errors: of the file
  // system.
  Result<std::string> place_for_changes();
  // CRIU does not need this image any more: others have what was in it.
  void note_unneeded(const std::string& name) { unneeded_.insert(name); }

  // Makes the symbolic link `link` to the directory from which CRIU restores. No link if that is
  // the checkpoint. Errors: of the file system; then CRIU can restore from the checkpoint.
  Status publish(const std::string& link);
  // CRIU needs the images no more, or is to use those of the checkpoint.
  void free_memory();

 private:
  explicit RestoreImages(std::string directory) : directory_(std::move(directory)) {}
  Status unpack(const ImageBundle& bundle);
  bool needs_checkpoint() const;

  std::string directory_;
  UniqueFd memory_;            // the tmpfs; none: nothing has been written
  UniqueFd overlay_;           // of both
  std::set<std::string> own_;  // names of images in memory, from the bundle
  // Only with a bundle.
  std::optional<std::set<std::string>> left_in_checkpoint_;
  std::set<std::string> unneeded_;
};

}  // namespace ppmr
