// Notifies the device that its queue has requests, when write(2) is not permitted.
#pragma once

#include <infiniband/verbs.h>

namespace ppmr::verbs {

// The library of rxe notifies the device with write(2) on the device's file. The kernel refuses
// this (EACCES) unless the thread has the same credentials object as the thread that opened the
// file. CRIU gives each restored thread its own credentials object. This function uses ioctl(2),
// which has no such check. The requests must be in the queue already. Returns whether it has
// succeeded.
bool ring_doorbell(const ibv_qp& real_qp);

}  // namespace ppmr::verbs
