// For tests: a directory of their own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace ppmr {

// Creates an empty directory below testing::TempDir(). The destructor removes it with its files.
class TestDirectory {
 public:
  TestDirectory() {
    if (mkdtemp(path_.data()) == nullptr) ::abort();
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::path(testing::TempDir()) / "test-XXXXXX";
};

}  // namespace ppmr
