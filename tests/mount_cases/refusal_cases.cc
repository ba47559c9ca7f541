// Calls that ppmr's mounts refuse by design; see expectations.h.
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Refusal : public MountCase {
 protected:
  testing::AssertionResult is_expected(bool served, int error) const {
    if (!served) return is_refusal(error);
    if (error == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << errno_name(error) << ", expected success";
  }
};

TEST_F(Refusal, OfAHardLinkLeavesTheFileUnchanged) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const int error = errno_of(::link(at_writer("file").c_str(), at_writer("second").c_str()));
  EXPECT_TRUE(is_expected(expects().hard_links, error));
  if (!expects().hard_links) {
    EXPECT_TRUE(is_absent(at_writer("second")));
  }
  EXPECT_TRUE(reads_as(at_reader("file"), "x"));
}

TEST_F(Refusal, OfAFifoLeavesNoDirectoryEntry) {
  const int error = errno_of(::mkfifo(at_writer("fifo").c_str(), 0644));
  EXPECT_TRUE(is_expected(expects().special_nodes, error));
  if (!expects().special_nodes) {
    EXPECT_TRUE(is_absent(at_writer("fifo")));
  }
}

TEST_F(Refusal, OfADeviceNodeLeavesNoDirectoryEntry) {
  if (::geteuid() != 0) GTEST_SKIP() << "making device nodes needs root";
  const int error = errno_of(::mknod(at_writer("null").c_str(), S_IFCHR | 0666, makedev(1, 3)));
  EXPECT_TRUE(is_expected(expects().special_nodes, error));
  if (!expects().special_nodes) {
    EXPECT_TRUE(is_absent(at_writer("null")));
  }
}

TEST_F(Refusal, OfASharedWritableMappingIsReportedByMmap) {
  Fd fd = open_file(at_writer("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, std::string(8192, 'x')));
  void* const mapping = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  const int error = mapping == MAP_FAILED ? errno : 0;
  EXPECT_TRUE(is_expected(expects().shared_mmap, error));
  if (mapping != MAP_FAILED) ::munmap(mapping, 8192);
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), std::string(8192, 'x')));
}

}  // namespace
}  // namespace ppmr::mount_cases
