// Wakes a thread that sleeps in poll(2), where other descriptors may wake it as well.
#pragma once

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

// Threads: any. A bell rung before anybody waits is heard by the next who does.
class Bell {
 public:
  // Errors: EMFILE, ENFILE.
  static Result<Bell> create();

  void ring() const;
  void silence() const;
  int fd() const { return event_.get(); }  // readable while it rings

 private:
  explicit Bell(UniqueFd event) : event_(std::move(event)) {}
  UniqueFd event_;
};

}  // namespace ppmr
