// Pages that processes of a tree share by copy-on-write, restored so that they are shared again.
//
// A userfaultfd gives each process a page of its own. criu restore can share pages: it restores the
// parent's before it forks the children, and a child keeps those whose bytes are the same in its
// own image. So the shared pages move from the memory file, which a lazy restore leaves to the
// pager, to images that CRIU reads first:
//
//   memory file   |.|####|..|      the index has #### at the same address of 17 and 18
//   images        those of the dump (restore_images.h), in which the new ones are
//     pagemap-17.img, pagemap-18.img    #### is present, the rest is still lazy
//     mm-17.img, mm-18.img              areas split so that CRIU sees what they share (mm_image.h)
//     pages-N.img  |##|p|##|q|          #### once, and the pages p and q that CRIU itself has
//     dumped
//
// Pages that rounds of pre-copy have sent are lazy in the new images, too (round_images.h).
//
// pages-N.img has the pages in the order of their addresses. Each process skips those of the
// others. Pages that CRIU has dumped for several processes are there once, too (equal_pages.h).
//
// Rejected: a pages file for each process (#### many times); the memory file itself as pages file
// (CRIU compares page by page: through the mount that takes ten times as long).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/images/pstree_image.h"
#include "restart_loader/pager/page_files.h"
#include "restart_loader/pager/restore_images.h"

namespace ppmr {

// Memory that a process and its parent have at the same address and the same place: by address, not
// overlapping. If processes share different pages at one address, one of the pages counts.
std::vector<PageRange> shared_ranges(const PageIndex& index, const Parents& parents);

// The parts of `ranges` (by address, not overlapping) that are in `shared`, or that are not.
std::vector<PageRange> shared_parts(const std::vector<PageRange>& ranges,
                                    const std::vector<PageRange>& shared);
std::vector<PageRange> unshared_parts(const std::vector<PageRange>& ranges,
                                      const std::vector<PageRange>& shared);

// Writes images with the pages of `shared` in place of those that CRIU has dumped. `index`: with
// places in `files`. `pagemaps`: of its processes; `pagemaps_differ`: from those in the images.
// Blocks while pages of `files` have not arrived. After an error some images are written and some
// are not. Errors: of the file system; EPROTO for images that CRIU has not written.
Status write_shared_pages(RestoreImages& images, const PageIndex& index,
                          const std::vector<PageRange>& shared, const PageFiles& files,
                          const std::map<pid_t, Pagemap>& pagemaps, bool pagemaps_differ);

}  // namespace ppmr
