// Pages that processes of a tree share by copy-on-write, restored so that they are shared again.
//
// A userfaultfd gives each process a page of its own. criu restore can share pages: it restores the
// parent's before it forks the children, and a child keeps those whose bytes are the same in its
// own image. So the shared pages move from the memory file, which a lazy restore leaves to the
// pager, to images that CRIU reads first:
//
//   memory file   |.|####|..|      the index has #### at the same address of 17 and 18
//   images        an overlay of CRIU's images with
//     pagemap-17.img, pagemap-18.img    #### is present, the rest is still lazy
//     mm-17.img, mm-18.img              areas split so that CRIU sees what they share (mm_image.h)
//     pages-N.img  |##|p|##|q|          #### once, and the pages p and q that CRIU itself has
//     dumped
//
// Pages that rounds of pre-copy have sent are lazy in the new images, too (round_images.h). Then
// the overlay is of the directory that also has the rounds, so that their links lead there.
//
// pages-N.img has the pages in the order of their addresses. Each process skips those of the
// others. Pages that CRIU has dumped for several processes are there once, too (equal_pages.h).
//
// The overlay is mounted in no directory: CRIU restores containers from it, too, whose root is not
// that of this node, and nothing is left when this process ends.
//
// Rejected: a pages file for each process (#### many times); the memory file itself as pages file
// (CRIU compares page by page: through the mount that takes ten times as long); symbolic links to
// CRIU's images (they lead nowhere in the root of a container).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"
#include "mount/page_index/page_index.h"
#include "restart_loader/pager/page_files.h"
#include "restart_loader/pager/pagemap_image.h"
#include "restart_loader/pager/pstree_image.h"

namespace ppmr {

// Memory that a process and its parent have at the same address and the same place: by address, not
// overlapping. If processes share different pages at one address, one of the pages counts.
std::vector<PageRange> shared_ranges(const PageIndex& index, const Parents& parents);

// The parts of `ranges` (by address, not overlapping) that are in `shared`, or that are not.
std::vector<PageRange> shared_parts(const std::vector<PageRange>& ranges,
                                    const std::vector<PageRange>& shared);
std::vector<PageRange> unshared_parts(const std::vector<PageRange>& ranges,
                                      const std::vector<PageRange>& shared);

// Images with the pages of `shared`, from which CRIU restores. Threads: one.
class SharedImages {
 public:
  struct Places {
    std::string images;  // the directory of CRIU's images
    std::string link;    // to the new images: is made when they are complete
  };
  // `index`: with places in `files`. `pagemaps`: of its processes; `pagemaps_differ`: from those in
  // the images. Blocks while pages of `files` have not arrived. Errors: of the file system; EPROTO
  // for images that CRIU has not written.
  static Result<SharedImages> create(const Places& places, const PageIndex& index,
                                     const std::vector<PageRange>& shared, const PageFiles& files,
                                     const std::map<pid_t, Pagemap>& pagemaps,
                                     bool pagemaps_differ);

  // CRIU has read the images.
  void free_memory();

 private:
  explicit SharedImages(UniqueFd images) : images_(std::move(images)) {}
  UniqueFd images_;  // the overlay, which holds all
};

}  // namespace ppmr
