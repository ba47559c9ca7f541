// Writes random bytes to a file through a mapping, all the time, and keeps the expected content in
// memory of its own. It calls pwrite(2) only rarely, so most changes leave no trace in the times of
// the file. When STOP exists, it compares the file with the expected content, and ends.
//
// Usage: file_writer FILE SIZE_MIB COUNT STOP RESULT [--deleted]
//   COUNT    a file that gets a line after each 1,000 writes
//   RESULT   gets "right", or the number of wrong bytes
//   --deleted   FILE is deleted at once, and stays open and mapped

#include <sys/mman.h>

#include <cstring>
#include <random>
#include <vector>

#include "posix.h"

int main(int argc, char** argv) {
  using namespace ppmr_programs;
  const bool is_deleted = argc == 7 && strcmp(argv[6], "--deleted") == 0;
  if (argc != 6 && !is_deleted) {
    fprintf(stderr, "usage: file_writer FILE SIZE_MIB COUNT STOP RESULT [--deleted]\n");
    return 2;
  }
  const size_t bytes = strtoul(argv[2], nullptr, 10) << 20;
  const int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) die("create the file");
  auto* const mapped = static_cast<unsigned char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  if (mapped == MAP_FAILED) die("map the file");
  if (is_deleted && unlink(argv[1]) != 0) die("delete the file");
  std::mt19937_64 random(1);
  std::vector<unsigned char> expected(bytes);
  for (unsigned char& byte : expected) byte = static_cast<unsigned char>(random());
  memcpy(mapped, expected.data(), bytes);
  const int count = open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  for (int line = 1; access(argv[4], F_OK) != 0; ++line) {
    for (int i = 0; i < 1000; ++i) {
      const size_t at = random() % bytes;
      mapped[at] = expected[at] = static_cast<unsigned char>(random());
    }
    if (line % 50 == 0) {
      const size_t at = random() % bytes;
      const unsigned char byte = expected[at] = static_cast<unsigned char>(random());
      if (pwrite(file, &byte, 1, static_cast<off_t>(at)) != 1) die("write the file");
    }
    if (count < 0 || dprintf(count, "%d\n", line) < 0) die("append a line");
    usleep(1000);
  }
  size_t wrong = 0;
  for (size_t at = 0; at < bytes; ++at) wrong += mapped[at] != expected[at] ? 1 : 0;
  const int result = open(argv[5], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const int said =
      wrong == 0 ? dprintf(result, "right\n") : dprintf(result, "%zu wrong bytes\n", wrong);
  return said < 0 ? 1 : 0;
}
