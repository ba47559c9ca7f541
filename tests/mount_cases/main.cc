// mount_cases --write-dir W [--read-dir R] [--expect tmpfs|source|target] [--ppmr BINARY] [gtest
// flags]
#include <gtest/gtest.h>

#include <iostream>

#include "tests/mount_cases/mount_case.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string error = ppmr::mount_cases::read_settings(argc, argv);
  if (!error.empty() && !GTEST_FLAG_GET(list_tests)) {
    std::cerr << "mount_cases: " << error << "\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
