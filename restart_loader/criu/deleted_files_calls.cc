// Makes CRIU restore deleted files that travel apart (deleted_files.h). This file is a part of the
// library in CRIU (criu_library.h).
//
//   openat64("ghost-file-N.img")   does not exist: CRIU gets the image without data
//   open64(path)                   CRIU creates an empty file
//   ftruncate64(file)              the filled file replaces it, by the inode in the image
//
// If anything does not look as expected, the restore fails.
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "processes/files/deleted_name.h"
#include "restart_loader/criu/deleted_files.h"
#include "restart_loader/criu/open_calls.h"

namespace {

// The deleted file that CRIU restores now. Each process of CRIU has one thread.
struct {
  uint64_t inode = 0;  // inode at the source; 0: none
  int file = -1;       // the file that CRIU has created; -1: none yet
  char path[PATH_MAX];
} restored;

// Makes `path` a link to the filled file. Looks for this file in all directories above `path`,
// because it is in the root of the tmpfs.
bool link_filled(const char* path) {
  char name[PATH_MAX + ppmr::kDeletedNameMaxBytes];
  for (size_t length = strlen(path); length > 0; --length) {
    if (path[length - 1] != '/') continue;
    snprintf(name, sizeof(name), "%.*s%s%lu", static_cast<int>(length), path, ppmr::kDeletedName,
             static_cast<unsigned long>(restored.inode));
    if (linkat(AT_FDCWD, name, AT_FDCWD, path, 0) == 0) return true;
    if (errno != ENOENT && errno != EXDEV) return false;
  }
  return false;
}

bool put_in_place(int file) {
  const int flags = fcntl(file, F_GETFD);
  if (flags < 0 || syscall(SYS_unlink, restored.path) != 0 || !link_filled(restored.path)) {
    return false;
  }
  const auto filled = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, restored.path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (filled < 0) return false;
  const bool is_put = dup3(filled, file, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) == file;
  close(filled);
  return is_put;
}

}  // namespace

int open_deleted_apart(int directory, const char* name) {
  char apart[NAME_MAX + 1];
  snprintf(apart, sizeof(apart), "%s%s", ppmr::kDeletedApart, name + strlen(ppmr::kDeletedFile));
  const auto image = static_cast<int>(syscall(SYS_openat, directory, apart, O_RDONLY));
  if (image < 0) return -1;  // errno is ENOENT: the images have no such file at all
  unsigned char head[ppmr::kDeletedHeadBytes];
  const ssize_t bytes = pread(image, head, sizeof(head), 0);
  restored.inode = bytes > 0 ? ppmr::inode_in_deleted_image(head, static_cast<size_t>(bytes)) : 0;
  restored.file = -1;
  if (restored.inode != 0) return image;
  close(image);
  errno = EIO;
  return -1;
}

void note_created(const char* path, int flags, int file) {
  if (restored.inode == 0 || file < 0 || (flags & O_EXCL) == 0 || (flags & O_CREAT) == 0) return;
  if (strlen(path) >= sizeof(restored.path)) return;
  strcpy(restored.path, path);
  restored.file = file;
}

bool fill_deleted(int file) {
  if (restored.inode == 0 || file != restored.file) return true;
  const bool is_put = put_in_place(file);
  restored.inode = 0;
  if (!is_put) errno = EIO;
  return is_put;
}
