// Pages that the dump of a frozen tree leaves out because an earlier pre-copy round has them.
//
//   last/pagemap-17.img   |lazy|in parent  |lazy|in parent|     lazy: in the memory file
//   last/parent -> ../1
//   1/pagemap-17.img      |in parent |present   |in parent|     present: in 1/pages-N.img
//   1/parent -> ../0
//   0/pagemap-17.img      |present                        |     in 0/pages-M.img
//
// CRIU would read the pages of the rounds before the tree runs. So the pager gives CRIU images in
// which these pages are lazy, too (shared_pages.h), and serves them. CRIU restores only the pages
// that cannot be lazy.
#pragma once

#include <map>
#include <string>

#include "processes/memory/page_index.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/pager/page_files.h"

namespace ppmr {

struct RoundImages {
  // The pagemaps of the processes with pages in rounds. In them those pages are lazy.
  std::map<pid_t, Pagemap> pagemaps;
  // The places of all lazy pages of all processes: in the memory file and in the files of rounds.
  PageIndex index;
};

// Returns whether the dump followed pre-copy rounds.
bool follows_rounds(const std::string& images);

// Reads the images of the rounds, and adds the pages files of the rounds to `files`. `index`: the
// page index of the memory file, which is the first of `files`. Errors: of the file system; EPROTO
// with the file and the fault for images that CRIU has not written, or pages that no round has.
Result<RoundImages> read_round_images(const std::string& images, const PageIndex& index,
                                      PageFiles& files);

}  // namespace ppmr
