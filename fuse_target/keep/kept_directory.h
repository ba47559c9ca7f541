// Stores a directory, the epoch of a suspended job node, in one file. The file has the format of a
// kept checkpoint, but needs no store and no mount. Holes of files stay holes.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

// Writes the directory `from` into the empty file `to`, syncs the file, and verifies all of it.
// Stores `name` in the file: read_kept_directory() needs the same name. `path` is the path of `to`,
// for messages. The caller ensures that the directory does not change. Errors: EINVAL for an entry
// that is not a file, directory or symbolic link; those of the file system, such as ENOSPC; those
// of KeptWriter and KeptFile.
Status write_kept_directory(const std::string& from, const UniqueFd& to, const std::string& path,
                            const std::string& name, const SharedKey& key);

// Creates the directory `to` with the contents of the file `from`, and verifies each block. The
// created files belong to the user of this process. Errors: EEXIST if `to` exists; EBADMSG if the
// file has another name than `name`, or is damaged; those of KeptFile. After an error, a part of
// `to` may exist.
Status read_kept_directory(UniqueFd from, const std::string& path, const std::string& name,
                           std::span<const SharedKey> keys, const std::string& to);

}  // namespace ppmr
