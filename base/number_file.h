// Reads and writes a number in a file that one program replaces while others read it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/result.h"

namespace ppmr {

// Replaces the number in the file. A reader finds the old number or the new one, never part of one.
// The change is not durable. Errors: those of the file system.
inline Status write_number(const std::string& path, uint64_t number) {
  const std::string written = path + ".new";
  std::ofstream file(written);
  file << number << '\n';
  file.close();
  if (!file) return system_failure("write", written);
  if (std::rename(written.c_str(), path.c_str()) != 0) return system_failure("write", path);
  return {};
}

// Returns 0 if there is no such file, or no number in it.
inline uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : 0;
}

}  // namespace ppmr
