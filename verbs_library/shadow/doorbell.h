// Telling the device that requests are in its queue, where write(2) may not.
#pragma once

#include <infiniband/verbs.h>

namespace ppmr::verbs {

// rxe's library rings by write(2) to the device's file, and the kernel refuses that (EACCES) unless
// the credentials are those object of which opened the file. CRIU gives each restored thread its
// own. ioctl(2) has no such check. Returns whether it worked: the requests are in the queue.
bool ring_doorbell(const ibv_qp& real_qp);

}  // namespace ppmr::verbs
