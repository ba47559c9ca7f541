// Applies the records of a file's content to the file that the target builds.
#pragma once

#include <cerrno>
#include <string>

#include "base/result.h"
#include "processes/files/file_archive.h"

namespace ppmr {

// `file`: open for writing. Errors: ENOSPC if memory is short; of the file system.
Status apply_content(const file_record::Size& size, int file);
Status apply_content(const file_record::Data& data, int file);
Status apply_content(const file_record::Hole& hole, int file);

// Returns an error that says what could not be written to `name`, and why.
tl::unexpected<Error> write_failure(const char* what, const std::string& name,
                                    int errno_value = errno);

}  // namespace ppmr
