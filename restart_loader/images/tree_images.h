// What CRIU's images say that a tree may do once it is restored: its credentials, files, namespaces
// and mounts.
//
// The images come from a peer. Every image that CRIU would read is read here or is known to be
// harmless; a name that is neither is in `others`. Sizes and counts are bounded, and a message that
// two readers could understand differently is refused. The caller makes sure that the images cannot
// change afterwards.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "mount/image_bundle.h"
#include "restart_loader/images/tree_images.pb.h"

namespace ppmr {

// Key: the name of the image, for messages.
template <typename Message>
using ByImage = std::vector<std::pair<std::string, Message>>;

struct TreeImages {
  tree_images::ids_entry node;             // the namespaces of the node that dumped the tree
  ByImage<tree_images::ids_entry> ids;     // of each process
  ByImage<tree_images::core_entry> cores;  // of each thread
  ByImage<tree_images::mm_entry> memories;
  ByImage<tree_images::fs_entry> directories;
  ByImage<tree_images::ghost_file_entry> ghosts;
  std::vector<tree_images::mnt_entry> mounts;
  std::map<uint32_t, tree_images::file_entry> files;  // by id
  std::set<uint32_t> descriptors;                     // the files that have a descriptor
  std::vector<tree_images::tty_info_entry> terminals;
  std::vector<tree_images::remap_file_path_entry> remaps;
  bool has_files_in_flight = false;        // descriptors in the queue of a socket
  std::vector<std::string> of_namespaces;  // names of images that only trees with namespaces have
  std::vector<std::string> others;
};

// `directory` is without a slash at its end. `bundle`: what CRIU reads in place of files of the
// directory; null: nothing. Errors: of the file system; EPROTO with the image and its fault.
Result<TreeImages> read_tree_images(const std::string& directory,
                                    const ImageBundle* bundle = nullptr);

}  // namespace ppmr
