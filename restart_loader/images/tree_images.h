// Reads from CRIU's images the rights of a tree after its restore: credentials, files, namespaces
// and mounts.
//
// The images come from a peer. read_tree_images() reads every image that CRIU would read, except
// the known harmless ones; `others` has all other names. The function bounds sizes and counts, and
// refuses a message that two readers could understand differently. The caller makes sure that the
// images cannot change afterwards.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "mount/image_bundle.h"
#include "restart_loader/images/tree_images.pb.h"

namespace ppmr {

// The first part of each pair is the name of the image, for messages.
template <typename Message>
using ByImage = std::vector<std::pair<std::string, Message>>;

struct TreeImages {
  tree_images::ids_entry node;             // the namespaces of the node that dumped the tree
  ByImage<tree_images::ids_entry> ids;     // one of each process
  ByImage<tree_images::core_entry> cores;  // one of each thread
  ByImage<tree_images::mm_entry> memories;
  ByImage<tree_images::fs_entry> directories;
  ByImage<tree_images::ghost_file_entry> ghosts;
  std::vector<tree_images::mnt_entry> mounts;
  std::map<uint32_t, tree_images::file_entry> files;  // key: id
  std::set<uint32_t> descriptors;                     // the files that have a descriptor
  std::vector<tree_images::tty_info_entry> terminals;
  std::vector<tree_images::remap_file_path_entry> remaps;
  bool has_files_in_flight = false;        // whether the queue of a socket has descriptors
  std::vector<std::string> of_namespaces;  // names of images that only trees with namespaces have
  std::vector<std::string> others;
};

// Reads the images. `directory` has no slash at its end. `bundle`: the images that CRIU reads from
// the bundle instead of the directory; null: no bundle. Errors: of the file system; EPROTO with the
// image and its fault.
Result<TreeImages> read_tree_images(const std::string& directory,
                                    const ImageBundle* bundle = nullptr);

// Returns whether the process asked for a signal when its parent ends (PR_SET_PDEATHSIG), which no
// file in /proc shows. Reads the image of the process's first thread. Errors: as
// read_tree_images().
Result<bool> dies_with_parent(const std::string& directory, const ImageBundle* bundle, pid_t pid);

}  // namespace ppmr
