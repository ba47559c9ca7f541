// `ppmr serve-pages`. A restore starts this command. It runs the pager (pager.h) until every page
// is in place.
#pragma once

#include <string>

namespace ppmr {

struct ServePagesCommand {
  std::string images;
  std::string bundle;    // a bundle of small images; empty: none
  std::string memory;    // a memory file; empty: the images include the memory
  std::string complete;  // a file that the pager creates when the memory file is complete
  // A link that the pager creates if CRIU must restore from other images.
  std::string shared_images;
  bool fill_early = false;
  bool any_file_sizes = false;
  bool leave_locks = false;
  bool leave_process_locks = false;
  std::string work;
  int ready_fd = -1;  // receives a byte when the pager listens

  int run() const;  // the exit code; the reason for a failure is on standard error
};

}  // namespace ppmr
