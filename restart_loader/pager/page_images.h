// The memory of processes in CRIU's images: which ranges a lazy restore leaves out, and where their
// bytes are.
//
//   pagemap-PID.img   entries in the order of the addresses: address, number of pages, flags
//   pages-N.img       the bytes of the entries that are present, in the same order
//   memory file       the bytes of the other entries, if the dump left them out; the page index
//                     (processes/memory) has their places
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/memory/page_index.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/pager/page_file.h"
#include "restart_loader/pager/restore_images.h"
#include "restart_loader/pager/shared_pages.h"

namespace ppmr {

// The memory of one process that a lazy restore leaves out, without the pages that the process
// shares.
struct TaskImages {
  std::shared_ptr<const PageFile> pages;  // null if there are no ranges
  std::vector<PageRange> ranges;          // sorted by address, not overlapping; places in `pages`
};

// Threads: one.
class PageImages {
 public:
  // Opens the images. `memory`: the memory file; empty: the images include the memory. With a
  // memory file, also checks that it has every page that the images leave out. Errors: of the file
  // system; EPROTO with the file and the fault for images that CRIU has not written, or memory that
  // is missing.
  static Result<PageImages> open(RestoreImages images, const std::string& memory);

  // Returns the pages of one process. `pid`: in the process's own pid namespace. Errors: as open().
  Result<TaskImages> of(pid_t pid) const;
  // Makes the images from which CRIU restores, and the symbolic link `link` to their directory.
  // These images include the pages that processes share. Blocks while shared pages have not
  // arrived. Makes no link if CRIU can restore from the checkpoint itself, or after an error. CRIU
  // then restores the images of the checkpoint, no pages are shared, and of() returns all pages.
  // Errors: those of write_shared_pages() and of RestoreImages::publish().
  Status prepare_images(const std::string& link);
  // Frees the images in memory, which CRIU no longer needs.
  void criu_has_ended() { images_.free_memory(); }
  // Returns the memory file; null if there is none.
  const std::shared_ptr<PageFile>& file() const { return file_; }

 private:
  explicit PageImages(RestoreImages images) : images_(std::move(images)) {}
  std::string pagemap_path(pid_t pid) const;
  // Returns the pages that the written images include.
  Result<std::vector<PageRange>> write_changed_images();
  Status exempt_reservations();
  Result<TaskImages> of(pid_t pid, const Pagemap& pagemap) const;

  RestoreImages images_;
  std::shared_ptr<PageFile> file_;  // null: there is no memory file
  PageIndex index_;                 // the index of the memory file
  // The pagemaps of the processes in the page index. Each is read once, because reading a file of a
  // mount costs round trips.
  std::map<pid_t, Pagemap> pagemaps_;
  std::vector<PageRange> shared_;  // pages that CRIU restores itself
};

}  // namespace ppmr
