// Questions and answers of the preflight as JSON. Increment the version when a field changes its
// meaning.
//
// A file has "path_bytes" beside "path" if its name is not ASCII: JSON can hold UTF-8 only. These
// are the bytes of the path in hexadecimal digits.
#pragma once

#include "preflight/preflight.h"

namespace ppmr {

inline constexpr int kPreflightVersion = 1;
inline constexpr const char* kPathBytes = "path_bytes";

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ListenerQuestion, protocol, address, port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AnnouncedProcess, pid, user, bundle)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PreflightQuestions, processes, boot_id, pids, files, addresses,
                                   listeners, containers, processor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PreflightAnswers, node, pids_taken, files, addresses_missing,
                                   listeners_taken, containers, policy_problem, processor_problem,
                                   drained_mount)

}  // namespace ppmr
