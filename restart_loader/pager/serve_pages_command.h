// `ppmr serve-pages`, which a restore starts: runs the pager (pager.h) until every page is in
// place.
#pragma once

#include <string>

namespace ppmr {

struct ServePagesCommand {
  std::string images;
  std::string bundle;         // a bundle of small images; empty: none
  std::string memory;         // a memory file; empty: the images include the memory
  std::string complete;       // a file to be made when the memory file is complete
  std::string shared_images;  // a link to be made if CRIU must restore from other images
  bool fill_early = false;
  std::string work;
  int ready_fd = -1;  // receives a byte when the pager listens

  int run() const;  // the exit code; the reason for a failure is on standard error
};

}  // namespace ppmr
