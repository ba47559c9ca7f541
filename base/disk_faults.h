// Makes calls of the file system fail, as with a disk that is full or damaged.
#pragma once

#include <sys/resource.h>

#include <string>
#include <vector>

namespace ppmr {

// While this object exists, readdir(3) in this process reads no directory. It returns these names,
// without the types of their files, then fails once with `error`; 0: does not fail. After that each
// directory ends. Link the test statically: otherwise a sanitizer's readdir() takes precedence.
//
// Threads: one fault at a time, and no other thread reads a directory.
class ReaddirFault {
 public:
  ReaddirFault(std::vector<std::string> names, int error);
  ~ReaddirFault();
  ReaddirFault(const ReaddirFault&) = delete;
  ReaddirFault& operator=(const ReaddirFault&) = delete;
};

// While this object exists, this process cannot extend a file beyond `bytes`: a write across this
// limit is short, and a write beyond the limit fails with EFBIG. SIGXFSZ stays ignored afterwards.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes);
  ~FileSizeLimit();
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace ppmr
