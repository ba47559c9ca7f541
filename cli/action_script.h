// ppmr as CRIU's action script: `criu dump --action-script /usr/local/bin/ppmr`. CRIU starts an
// action script without arguments, at every stage of its work, and describes the stage in
// environment variables (criu(8)).
#pragma once

#include <optional>

namespace ppmr {

// At pre-dump: from now on the files of the checkpoint are closed without waiting for the target.
// At post-dump, when all images are written and the tree is still frozen: seals the checkpoint of
// the images. If that fails, so does the dump, and CRIU lets the tree run on. Has no effect at the
// other stages. Returns the exit code; nullopt: CRIU has not started this process as its action
// script.
std::optional<int> run_action_script();

}  // namespace ppmr
