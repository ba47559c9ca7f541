// A directory in one file of the form of a kept checkpoint, without a store and without a mount:
// the epoch of a suspended job node. Holes of files stay holes.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

// Writes the directory `from` into the empty file `to`, syncs it, and reads all of it back. `name`
// goes into the file, and the reader asks for it. `path` is that of `to`, for messages. The caller
// keeps others from changing the directory. Errors: EINVAL for anything but files, directories and
// symbolic links; of the file system, ENOSPC above all; those of KeptWriter and KeptFile.
Status write_kept_directory(const std::string& from, const UniqueFd& to, const std::string& path,
                            const std::string& name, const SharedKey& key);

// Makes the directory `to` with the contents of the file, each block verified. The files belong to
// the caller. Errors: EEXIST; EBADMSG if the file has another name, or is damaged; those of
// KeptFile. After an error `to` may be there in part.
Status read_kept_directory(UniqueFd from, const std::string& path, const std::string& name,
                           std::span<const SharedKey> keys, const std::string& to);

}  // namespace ppmr
