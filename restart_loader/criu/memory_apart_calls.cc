// Hides from CRIU the content of what travels apart: shared memory (memory_apart.h), and deleted
// files (deleted_files.h). This part of the library in CRIU (criu_library.h) replaces two functions
// of libc. open_calls.cc calls it for each image.
//
//   dump      openat64("pagemap-shmem-N.img")   the memory with inode N follows
//             openat64("ghost-file-N.img")      a deleted file follows
//             lseek64(SEEK_DATA)                finds nothing in it; the image gets its other name
//   restore   openat64("inventory.img")         maps what is filled, before CRIU's first child
//             ftruncate64(file)                 CRIU has made a memory
//             openat64("pagemap-shmem-N.img")   does not exist: fills that memory
//
// If anything does not look as expected, a dump hides nothing and a restore fails. Each process of
// CRIU has one thread.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "restart_loader/criu/deleted_files.h"
#include "restart_loader/criu/library_environment.h"
#include "restart_loader/criu/memory_apart.h"
#include "restart_loader/criu/open_calls.h"

namespace {

constexpr size_t kMemoriesMax = 128;
constexpr size_t kListMaxBytes = 16384;
constexpr size_t kNameMaxBytes = 64;

struct Memory {
  uint64_t inode = 0;
  uint64_t device = 0;    // device of a deleted file; 0: it is shared memory
  void* start = nullptr;  // null: not mapped
  size_t bytes = 0;
};
Memory memories[kMemoriesMax];
size_t memories_count = 0;
bool has_read_list = false;
char list_path[4096];

// What CRIU dumps now. The image that CRIU has opened last names it.
struct {
  int directory = -1;
  uint64_t inode = 0;                // inode of a memory, or of a hidden deleted file; 0: none
  char deleted[kNameMaxBytes] = "";  // the image of a deleted file
  bool is_hidden = false;
} dumped;

int sized = -1;  // the file whose size CRIU has set last

__attribute__((constructor)) void read_path_of_list() {
  const char* const path = getenv(ppmr::kMemoryApartList);
  if (path != nullptr && strlen(path) < sizeof(list_path)) strcpy(list_path, path);
  unsetenv(ppmr::kMemoryApartList);
}

// Returns false if the memory cannot be mapped.
bool map(const char* path, Memory& memory) {
  const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  struct stat facts {};
  if (file < 0) return false;
  if (fstat(file, &facts) == 0) {
    memory.bytes = static_cast<size_t>(facts.st_size);
    void* const start = mmap(nullptr, memory.bytes, PROT_READ, MAP_SHARED, file, 0);
    memory.start = start == MAP_FAILED ? nullptr : start;
  }
  close(file);
  return memory.start != nullptr;
}

void read_list() {
  if (has_read_list || list_path[0] == '\0') return;
  has_read_list = true;
  static char text[kListMaxBytes];
  const auto list =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, list_path, O_RDONLY | O_CLOEXEC));
  if (list < 0) return;  // no memory travels apart
  const ssize_t length = read(list, text, sizeof(text) - 1);
  close(list);
  text[length > 0 ? length : 0] = '\0';
  char* at = text;
  ppmr::MemoryApartLine line;
  while (memories_count < kMemoriesMax && ppmr::next_memory_apart(at, line)) {
    Memory memory{line.inode, line.device};
    if (line.path != nullptr && !map(line.path, memory)) continue;
    memories[memories_count++] = memory;
  }
}

const Memory* find(uint64_t inode, uint64_t device = 0) {
  for (size_t i = 0; i < memories_count; ++i) {
    if (memories[i].inode == inode && memories[i].device == device) return &memories[i];
  }
  return nullptr;
}

// All memory without huge pages is on one device.
dev_t device_of_memory() {
  static dev_t device = 0;
  if (device == 0) {
    const auto memory = static_cast<int>(syscall(SYS_memfd_create, "ppmr", MFD_CLOEXEC));
    struct stat facts {};
    if (fstat(memory, &facts) == 0) device = facts.st_dev;
    close(memory);
  }
  return device;
}

bool rename_image(uint64_t inode) {
  char from[kNameMaxBytes];
  char to[kNameMaxBytes];
  snprintf(from, sizeof(from), "%s%lu.img", ppmr::kPagesOfShared,
           static_cast<unsigned long>(inode));
  snprintf(to, sizeof(to), "%s%lu.img", ppmr::kPagesApart, static_cast<unsigned long>(inode));
  return renameat(dumped.directory, from, dumped.directory, to) == 0;
}

bool is_deleted_hidden(int file) {
  struct stat facts {};
  if (fstat(file, &facts) != 0) return false;
  if (dumped.is_hidden) return facts.st_ino == dumped.inode;
  read_list();
  if (find(facts.st_ino, facts.st_dev) == nullptr) return false;
  char to[kNameMaxBytes + 1];
  snprintf(to, sizeof(to), "%s%s", ppmr::kDeletedApart,
           dumped.deleted + strlen(ppmr::kDeletedFile));
  dumped.inode = facts.st_ino;
  dumped.is_hidden = renameat(dumped.directory, dumped.deleted, dumped.directory, to) == 0;
  return dumped.is_hidden;
}

bool is_hidden(int file) {
  if (dumped.deleted[0] != '\0') return is_deleted_hidden(file);
  if (dumped.inode == 0) return false;
  struct stat facts {};
  if (fstat(file, &facts) != 0 || facts.st_ino != dumped.inode) return false;
  if (facts.st_dev != device_of_memory()) return false;
  if (dumped.is_hidden) return true;
  read_list();
  const Memory* const memory = find(dumped.inode);
  dumped.is_hidden = memory != nullptr && rename_image(dumped.inode);
  return dumped.is_hidden;
}

// Opens the file of a mapping of this process. Mounts its own /proc for that, because the /proc
// here may belong to another pid namespace. Returns -1 on an error.
int open_mapping(const Memory& memory) {
  const int context = fsopen("proc", FSOPEN_CLOEXEC);
  if (context < 0) return -1;
  int proc = -1;
  if (fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0) {
    proc = fsmount(context, FSMOUNT_CLOEXEC, 0);
  }
  close(context);
  if (proc < 0) return -1;
  char name[kNameMaxBytes];
  const auto start = reinterpret_cast<unsigned long>(memory.start);
  const unsigned long page = static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
  const unsigned long end = (start + memory.bytes + page - 1) / page * page;
  snprintf(name, sizeof(name), "self/map_files/%lx-%lx", start, end);
  const auto file = static_cast<int>(syscall(SYS_openat, proc, name, O_RDWR | O_CLOEXEC));
  close(proc);
  return file;
}

// Makes the descriptor of CRIU's new memory refer to the filled memory.
bool put_in_place(const Memory& memory) {
  struct stat made {};
  if (fstat(sized, &made) != 0 || made.st_dev != device_of_memory() || made.st_blocks != 0 ||
      static_cast<size_t>(made.st_size) > memory.bytes) {
    return false;
  }
  const int filled = open_mapping(memory);
  if (filled < 0) return false;
  const int seals = fcntl(sized, F_GET_SEALS);
  const int flags = fcntl(sized, F_GETFD);
  const bool is_put = seals >= 0 && flags >= 0 &&
                      (seals == 0 || fcntl(filled, F_ADD_SEALS, seals) == 0) &&
                      dup3(filled, sized, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) == sized;
  close(filled);
  return is_put;
}

int open_pages_apart(int directory, uint64_t inode) {
  char name[kNameMaxBytes];
  snprintf(name, sizeof(name), "%s%lu.img", ppmr::kPagesApart, static_cast<unsigned long>(inode));
  const auto file = static_cast<int>(syscall(SYS_openat, directory, name, O_RDONLY));
  if (file < 0) return -1;  // errno is ENOENT: the images have no such memory at all
  const Memory* const memory = find(inode);
  if (memory != nullptr && memory->start != nullptr && put_in_place(*memory)) return file;
  close(file);
  errno = EIO;
  return -1;
}

}  // namespace

int after_open(int directory, const char* name, int flags, int file) {
  const bool is_dump = (flags & O_CREAT) != 0;
  if (!is_dump && strcmp(name, "inventory.img") == 0) {
    read_list();
    set_inherited();
  }
  if (strncmp(name, ppmr::kDeletedFile, strlen(ppmr::kDeletedFile)) == 0) {
    if (!is_dump) return file < 0 && errno == ENOENT ? open_deleted_apart(directory, name) : file;
    if (file >= 0 && strlen(name) < sizeof(dumped.deleted)) {
      dumped = {directory, 0, "", false};
      strcpy(dumped.deleted, name);
    }
    return file;
  }
  const uint64_t inode = ppmr::number_in_image_name(name, ppmr::kPagesOfShared);
  if (inode == 0) return file;
  if (is_dump) {
    if (file >= 0) dumped = {directory, inode, "", false};
    return file;
  }
  return file < 0 && errno == ENOENT ? open_pages_apart(directory, inode) : file;
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED off64_t lseek64(int file, off64_t offset, int whence) noexcept {
  if (whence == SEEK_DATA && is_hidden(file)) {
    errno = ENXIO;  // there is no data from here on
    return -1;
  }
  return syscall(SYS_lseek, file, offset, whence);
}

EXPORTED int ftruncate64(int file, off64_t bytes) noexcept {
  if (!fill_deleted(file)) return -1;
  sized = file;
  return static_cast<int>(syscall(SYS_ftruncate, file, bytes));
}
