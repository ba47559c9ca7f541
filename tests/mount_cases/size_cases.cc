// Whole files whose sizes are equal to the limits of chunks, or next to them.
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class FileSize : public MountCase, public testing::WithParamInterface<uint64_t> {};

TEST_P(FileSize, FileOfEachSizeArrivesWholeFromOneWrite) {
  const std::string bytes = pattern(GetParam(), 1);
  ASSERT_TRUE(write_file(at_writer("file"), bytes, std::max<uint64_t>(bytes.size(), 1)));
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

TEST_P(FileSize, FileOfEachSizeArrivesWholeFromWritesOf64KiB) {
  const std::string bytes = pattern(GetParam(), 2);
  ASSERT_TRUE(write_file(at_writer("file"), bytes, 64 * kKiB));
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

TEST_P(FileSize, TopLevelFileOfEachSizeArrivesWhole) {
  const std::string bytes = pattern(GetParam(), 3);
  const std::string name = "/" + top() + ".file";
  ASSERT_TRUE(write_file(settings().write_dir + name, bytes));
  EXPECT_TRUE(reads_as(settings().read_dir + name, bytes));
  EXPECT_EQ(errno_of(::unlink((settings().write_dir + name).c_str())), 0);
  EXPECT_TRUE(soon([&] { return is_absent(settings().read_dir + name); }));
}

INSTANTIATE_TEST_SUITE_P(Of, FileSize,
                         testing::Values(0, 1, 4095, 4096, 4097, 64 * kKiB - 1, 64 * kKiB,
                                         64 * kKiB + 1, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB + 5),
                         [](const auto& info) { return std::to_string(info.param) + "Bytes"; });

using LargeFile = MountCase;

// The file is longer than 2^31 bytes. Every word depends on its offset, so the test needs only one
// buffer at a time.
TEST_F(LargeFile, OfThreeGiBArrivesWhole) {
  allow_seconds(600);
  constexpr uint64_t kSize = 3 * kGiB;
  std::string buffer(kMiB, '\0');
  Fd out = open_file(at_writer("large"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(out.ok()) << errno_name(errno);
  for (uint64_t at = 0; at < kSize; at += buffer.size()) {
    fill_pattern(buffer.data(), buffer.size(), 7, at);
    ASSERT_TRUE(write_whole(out, buffer)) << "at " << at;
  }
  ASSERT_EQ(out.close(), 0);

  Fd in = open_file(at_reader("large"), O_RDONLY);
  ASSERT_TRUE(in.ok()) << errno_name(errno);
  struct stat seen {};
  ASSERT_EQ(errno_of(::fstat(in.get(), &seen)), 0);
  ASSERT_EQ(static_cast<uint64_t>(seen.st_size), kSize);
  std::string got(kMiB, '\0');
  for (uint64_t at = 0; at < kSize; at += got.size()) {
    fill_pattern(buffer.data(), buffer.size(), 7, at);
    ASSERT_EQ(::read(in.get(), got.data(), got.size()), static_cast<ssize_t>(got.size()))
        << "at " << at;
    ASSERT_TRUE(same_bytes(got, buffer)) << "in the MiB at " << at;
  }
  EXPECT_EQ(::read(in.get(), got.data(), got.size()), 0) << "end of file";
}

// The file is as long as that of the case above, with data only at both ends and across the 2 GiB
// limit.
TEST_F(LargeFile, OfThreeGiBWithHolesReadsAsZeroesBetweenItsData) {
  allow_seconds(300);
  const std::string bytes = pattern(4097, 8);
  constexpr uint64_t kEnd = 3 * kGiB;
  const std::vector<uint64_t> places = {0, 2 * kGiB - 100, kEnd - 4097};
  Fd out = open_file(at_writer("sparse"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(out.ok()) << errno_name(errno);
  for (const uint64_t at : places) ASSERT_TRUE(pwrite_whole(out, bytes, at));
  ASSERT_EQ(out.close(), 0);

  Fd in = open_file(at_reader("sparse"), O_RDONLY);
  ASSERT_TRUE(in.ok()) << errno_name(errno);
  std::string got(bytes.size(), '\0');
  for (const uint64_t at : places) {
    ASSERT_EQ(::pread(in.get(), got.data(), got.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(got.size()));
    EXPECT_TRUE(same_bytes(got, bytes)) << "at " << at;
  }
  for (const uint64_t at : {8 * kKiB, kGiB + 17, 3 * kGiB - 64 * kKiB}) {
    ASSERT_EQ(::pread(in.get(), got.data(), got.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(got.size()));
    EXPECT_TRUE(same_bytes(got, std::string(got.size(), '\0'))) << "in the hole at " << at;
  }
  EXPECT_EQ(::pread(in.get(), got.data(), got.size(), static_cast<off_t>(kEnd)), 0);
}

using SmallFiles = MountCase;

TEST_F(SmallFiles, TenThousandArriveWhole) {
  allow_seconds(300);
  constexpr int kFiles = 10'000;
  std::vector<std::string> names;
  for (int i = 0; i < kFiles; ++i) {
    names.push_back("small-" + std::to_string(i));
    ASSERT_TRUE(write_file(at_writer(names.back()),
                           pattern(static_cast<size_t>(i % 500), static_cast<uint64_t>(i))));
  }
  EXPECT_TRUE(soon_lists("", names));
  for (int i = 0; i < kFiles; ++i) {
    ASSERT_TRUE(reads_as(at_reader(names[static_cast<size_t>(i)]),
                         pattern(static_cast<size_t>(i % 500), static_cast<uint64_t>(i))));
  }
}

}  // namespace
}  // namespace ppmr::mount_cases
