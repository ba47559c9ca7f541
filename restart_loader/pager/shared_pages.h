// Restores pages that processes of a tree share by copy-on-write, so that the processes share them
// again.
//
// A userfaultfd gives each process a page of its own. criu restore can share pages: it restores the
// parent's pages before it forks the children, and a child keeps a page if its own image has the
// same bytes. So the pager moves the shared pages from the memory file to images that CRIU reads
// first:
//
//   memory file   |.|####|..|      the index has #### at the same address of 17 and 18
//   images        the images of the dump (restore_images.h), with these new ones:
//     pagemap-17.img, pagemap-18.img    #### is present, the rest is still lazy
//     mm-17.img, mm-18.img              areas split so that CRIU sees what they share (mm_image.h)
//     pages-N.img  |##|p|##|q|          #### once, and the pages p and q that CRIU has dumped
//
// pages-N.img has the pages in the order of their addresses. Each process skips the pages of the
// others. Pages that CRIU has dumped for several processes are also there once (equal_pages.h).
//
// Rejected: a pages file for each process, which has #### many times. Rejected: the memory file
// itself as pages file, because CRIU compares page by page, which takes ten times as long through
// the mount.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/images/pstree_image.h"
#include "restart_loader/pager/page_file.h"
#include "restart_loader/pager/restore_images.h"

namespace ppmr {

// Returns the memory that a process and its parent have at the same address and the same place. The
// ranges are sorted by address and do not overlap. If processes share different pages at one
// address, only one of the pages counts.
std::vector<PageRange> shared_ranges(const PageIndex& index, const Parents& parents);

// Returns the parts of `ranges` (sorted by address, not overlapping) that are in `shared`, or that
// are not in it.
std::vector<PageRange> shared_parts(const std::vector<PageRange>& ranges,
                                    const std::vector<PageRange>& shared);
std::vector<PageRange> unshared_parts(const std::vector<PageRange>& ranges,
                                      const std::vector<PageRange>& shared);

// Writes images that include the pages of `shared`, to replace the images that CRIU has dumped.
// `index`: has places in `file`. `pagemaps`: the pagemaps of the index's processes. Blocks while
// pages of `file` have not arrived. After an error some images are written and some are not.
// Errors: of the file system; EPROTO for images that CRIU has not written.
Status write_shared_pages(RestoreImages& images, const PageIndex& index,
                          const std::vector<PageRange>& shared, const PageFile& file,
                          const std::map<pid_t, Pagemap>& pagemaps);

}  // namespace ppmr
