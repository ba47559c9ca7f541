// ppmr as CRIU's action script: `criu dump --action-script /usr/local/bin/ppmr`. CRIU starts an
// action script without arguments, at every stage of its work, and describes the stage in
// environment variables (criu(8)).
#pragma once

#include <optional>

namespace ppmr {

// Acts at two stages. At pre-dump, it lets the daemon close the files of the checkpoint from now on
// without waiting for the target. At post-dump, when CRIU has written all images and the tree is
// still frozen, it seals the checkpoint of the images. If the seal fails, the dump fails, too, and
// CRIU resumes the tree. Returns the exit code; nullopt: CRIU has not started this process as its
// action script.
std::optional<int> run_action_script();

}  // namespace ppmr
