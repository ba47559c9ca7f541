// The interface ibv_wr_*: collects requests from ibv_wr_start() to ibv_wr_complete(), which calls
// post_send().
#pragma once

#include <cstddef>
#include <vector>

#include "verbs_library/shadow/fast_lock.h"
#include "verbs_library/shadow/real_verbs.h"

namespace ppmr::verbs {

struct Qp;

struct Builder {
  Builder(size_t requests_max, size_t pieces_max, size_t inline_bytes_max)
      : requests(requests_max),
        pieces(requests_max * pieces_max),
        inline_bytes(requests_max * inline_bytes_max),
        pieces_max(pieces_max),
        inline_bytes_max(inline_bytes_max) {}

  FastLock lock;  // held from start to complete or abort, as with a real device
  std::vector<ibv_send_wr> requests;
  std::vector<ibv_sge> pieces;
  std::vector<char> inline_bytes;
  const size_t pieces_max, inline_bytes_max;
  size_t count = 0;
  int error = 0;  // the first one; ibv_wr_complete returns it
};

// Sets the functions of the queue pair's ibv_qp_ex.
void set_builder(Qp& qp);

}  // namespace ppmr::verbs
