// What a restore that failed, or whose supervisor died, has left behind. There must never be a
// second copy: it is killed only if none of it has run its own code.
#pragma once

#include <string>

#include "buffer_pool/result.h"
#include "restart_loader/records/ownership_record.h"

namespace ppmr {

// Ends a CRIU that is still at work, and looks at what it has made. False: all of it was killed,
// and forgotten by runc, so that it can be restored again. True: it runs, or has run and ended.
// `work_directory`: of the restore. `criu_was_killed`: as far as is known, also by nobody we know.
// All that is killed are descendants of the caller, or of a supervisor before it.
//
// Errors: EUCLEAN, some tasks run and others wait, and only people can say what is to be done; of
// looking and killing.
Result<bool> settle_remains(const TreeRecord& tree, const std::string& work_directory,
                            bool criu_was_killed);

}  // namespace ppmr
