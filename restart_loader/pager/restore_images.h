// The images from which CRIU restores: the images of the checkpoint, some of which are in memory.
//
//   CRIU reads      an overlay, or the tmpfs alone if CRIU needs nothing else
//     tmpfs           the small images, from the bundle (mount), and those that are
//                     changed for the restore (shared_pages.h)
//     checkpoint      the mount of the target: the large images
//
// For each image, CRIU needs a round trip to the daemon for the look-up, for open, read and close.
// A look-up of an image that does not exist costs a round trip, too.
//
// The mounts are in no directory, for two reasons: the root of a container that CRIU restores is
// not the root of this node, and no mount remains when this process ends.
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
  // Opens the images in `directory`. `bundle`: the path of the bundle of the small images; empty:
  // none. Errors: of the file system; EPROTO for a damaged bundle.
  static Result<RestoreImages> open(std::string directory, const std::string& bundle = "");

  // Returns the directory of the images in the checkpoint.
  const std::string& directory() const { return directory_; }
  // Returns the path from which to read an image.
  std::string path_of(const std::string& name) const;
  // Returns the path at which to write an image that is new, or that replaces another. From then
  // on, path_of() returns it. Errors: of the file system.
  Result<std::string> path_for_change(const std::string& name);
  // Notes that CRIU no longer needs this image, because other images have its content.
  void note_unneeded(const std::string& name) { unneeded_.insert(name); }

  // Makes the symbolic link `link` to the directory from which CRIU restores. Makes no link if that
  // directory is the checkpoint. Errors: of the file system. After an error CRIU can restore from
  // the checkpoint.
  Status publish(const std::string& link);
  // Frees the images in memory. CRIU no longer needs them, or will use the images of the
  // checkpoint.
  void free_memory();

 private:
  explicit RestoreImages(std::string directory) : directory_(std::move(directory)) {}
  Status unpack(const ImageBundle& bundle);
  Result<std::string> place_for_changes();
  bool needs_checkpoint() const;

  std::string directory_;
  UniqueFd memory_;            // the tmpfs; invalid: nothing has been written
  UniqueFd overlay_;           // overlay of the tmpfs and the checkpoint
  std::set<std::string> own_;  // names of images in memory
  // Names of the images that the bundle lacks; nullopt: there is no bundle.
  std::optional<std::set<std::string>> left_in_checkpoint_;
  std::set<std::string> unneeded_;
};

}  // namespace ppmr
