// The FUSE operations of the source mount, by the file that holds them.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include "fuse_source/source_mount.h"

namespace ppmr::source_operations_detail {

inline SourceMount& mount_of(fuse_req_t request) {
  return *static_cast<SourceMount*>(fuse_req_userdata(request));
}

// The one place where errors become what a caller sees.
void reply_error(fuse_req_t request, const Error& error);
void reply_status(fuse_req_t request, const Status& status);
void reply_entry(fuse_req_t request, const SourceNodePointer& node);
fuse_entry_param entry_of(SourceMount& mount, const SourceNodePointer& node);

// The node that the kernel asks for; answers the request itself if there is none.
SourceNodePointer node_of(fuse_req_t request, fuse_ino_t inode);

// The names the kernel may keep without asking again: nobody but us changes them.
inline constexpr double kEntrySeconds = 1.0;

void add_name_operations(fuse_lowlevel_ops& operations);       // ops_names.cc
void add_attribute_operations(fuse_lowlevel_ops& operations);  // ops_attributes.cc
void add_directory_operations(fuse_lowlevel_ops& operations);  // ops_directories.cc
void add_file_operations(fuse_lowlevel_ops& operations);       // ops_files.cc

}  // namespace ppmr::source_operations_detail
