// Borrows a file of a checkpoint as the pager does, for tests/e2e/test_lend.py.
//
//   borrow_file CONTROL_SOCKET CHECKPOINT FILE
//
// Prints "borrowed SIZE", or "refused ERRNO MESSAGE" and ends. Then, for each line OUT that it
// reads, it writes the bytes to the file OUT and prints "written", or "failed MESSAGE". Ends at the
// end of its input.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "restart_loader/pager/borrowed_file.h"

namespace {

ppmr::Status write_to(const std::string& path, const ppmr::BorrowedFile& file) {
  std::ofstream out(path, std::ios::binary);
  std::vector<std::byte> scratch(64 << 10);
  for (uint64_t at = 0; at < file.end_bytes();) {
    const auto bytes = file.at(at, 1 << 20, scratch);
    if (!bytes) return ppmr::failure(bytes.error());
    out.write(reinterpret_cast<const char*>(bytes->data()),
              static_cast<std::streamsize>(bytes->size()));
    at += bytes->size();
  }
  return out.flush() ? ppmr::Status() : ppmr::system_failure("write", path, EIO);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  ppmr::BorrowedFile file(argv[1], argv[2], argv[3]);
  if (const auto borrowed = file.borrow_all(); !borrowed) {
    const ppmr::Error& error = borrowed.error();
    std::cout << "refused " << error.errno_value << " " << error.message << std::endl;
    return 1;
  }
  std::cout << "borrowed " << file.end_bytes() << std::endl;
  for (std::string path; std::getline(std::cin, path);) {
    const auto written = write_to(path, file);
    std::cout << (written ? "written" : "failed " + written.error().message) << std::endl;
  }
}
