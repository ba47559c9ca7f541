// What the records of a file's content do to the file that is built.
#pragma once

#include "base/result.h"
#include "processes/files/file_archive.h"

namespace ppmr {

// `file`: open for writing. Errors: ENOSPC if memory is short; of the file system.
Status apply_content(const file_record::Size& size, int file);
Status apply_content(const file_record::Data& data, int file);
Status apply_content(const file_record::Hole& hole, int file);

// Says what could not be written. `errno` is the reason.
tl::unexpected<Error> write_failure(const char* what, const std::string& name);

}  // namespace ppmr
