// Bytes that the kernel copies: sendfile, splice, copy_file_range.
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Copy : public MountCase {
 protected:
  // Returns an unnamed file outside the mounts that contains `bytes`.
  static Fd elsewhere(std::string_view bytes) {
    Fd fd(::memfd_create("elsewhere", 0));
    EXPECT_TRUE(write_whole(fd, bytes));
    EXPECT_EQ(::lseek(fd.get(), 0, SEEK_SET), 0);
    return fd;
  }
  Fd create(int flags = O_WRONLY) {
    Fd fd = open_file(at_writer("file"), flags | O_CREAT);
    EXPECT_TRUE(fd.ok()) << errno_name(errno);
    return fd;
  }
};

TEST_F(Copy, SendfileIntoTheMountKeepsTheBytes) {
  const std::string bytes = pattern(3 * kMiB + 77, 1);
  const Fd in = elsewhere(bytes);
  Fd out = create();
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::sendfile(out.get(), in.get(), nullptr, bytes.size() - done);
    ASSERT_GT(count, 0) << errno_name(errno);
    done += static_cast<size_t>(count);
  }
  ASSERT_EQ(out.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

TEST_F(Copy, SendfileOutOfTheMountKeepsTheBytes) {
  const std::string bytes = pattern(kMiB + 77, 2);
  ASSERT_TRUE(write_file(at_writer("file"), bytes));
  const Fd in = open_file(at_reader("file"), O_RDONLY);
  const Fd out = elsewhere("");
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::sendfile(out.get(), in.get(), nullptr, bytes.size() - done);
    ASSERT_GT(count, 0) << errno_name(errno);
    done += static_cast<size_t>(count);
  }
  std::string got(bytes.size(), '\0');
  ASSERT_EQ(::pread(out.get(), got.data(), got.size(), 0), static_cast<ssize_t>(got.size()));
  EXPECT_TRUE(same_bytes(got, bytes));
}

// criu dump splices pages, in pieces that are not whole chunks.
TEST_F(Copy, SpliceFromAPipeKeepsTheOrder) {
  const std::string bytes = pattern(5 * kMiB + 4096 * 3 + 5, 3);
  std::array<int, 2> ends{};
  ASSERT_EQ(errno_of(::pipe2(ends.data(), O_CLOEXEC)), 0);
  const Fd pipe_out(ends[0]);
  Fd pipe_in(ends[1]);
  (void)::fcntl(pipe_in.get(), F_SETPIPE_SZ, 1 << 20);
  Fd out = create();
  std::thread feeder([&] {
    EXPECT_TRUE(write_whole(pipe_in, bytes, bytes.size()));
    pipe_in.close();
  });
  size_t done = 0;
  while (true) {
    const ssize_t count =
        ::splice(pipe_out.get(), nullptr, out.get(), nullptr, 819 * 4096, SPLICE_F_MOVE);
    if (count <= 0) {
      EXPECT_EQ(count, 0) << errno_name(errno);
      break;
    }
    done += static_cast<size_t>(count);
  }
  feeder.join();
  EXPECT_EQ(done, bytes.size());
  ASSERT_EQ(out.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

TEST_F(Copy, SpliceWritesAtTheGivenOffset) {
  std::array<int, 2> ends{};
  ASSERT_EQ(errno_of(::pipe2(ends.data(), O_CLOEXEC)), 0);
  const Fd pipe_out(ends[0]);
  const Fd pipe_in(ends[1]);
  ASSERT_TRUE(write_whole(pipe_in, "spliced"));
  Fd out = create();
  loff_t at = 70'000;
  ASSERT_EQ(::splice(pipe_out.get(), nullptr, out.get(), &at, 7, 0), 7) << errno_name(errno);
  ASSERT_EQ(out.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), std::string(70'000, '\0') + "spliced"));
}

TEST_F(Copy, CopyFileRangeInsideTheMountKeepsTheBytes) {
  const std::string bytes = pattern(2 * kMiB + 9, 4);
  ASSERT_TRUE(write_file(at_writer("original"), bytes));
  const Fd in = open_file(at_writer("original"), O_RDONLY);
  Fd out = create();
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::copy_file_range(in.get(), nullptr, out.get(), nullptr, bytes.size() - done, 0);
    if (count < 0 && done == 0) {
      // After these errors cp(1) falls back to read and write. It reports any other errno.
      EXPECT_TRUE(errno == EOPNOTSUPP || errno == ENOSYS || errno == EXDEV || errno == EINVAL)
          << errno_name(errno);
      GTEST_SKIP() << "copy_file_range is refused with " << errno_name(errno);
    }
    ASSERT_GT(count, 0) << errno_name(errno);
    done += static_cast<size_t>(count);
  }
  ASSERT_EQ(out.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

TEST_F(Copy, CpAndTarKeepFilesAndBytes) {
  ASSERT_EQ(errno_of(::mkdir(at_writer("tree").c_str(), 0755)), 0);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(write_file(at_writer("tree/f" + std::to_string(i)),
                           pattern(static_cast<size_t>(i) * 10'000, static_cast<uint64_t>(i))));
  }
  const std::string from = at_writer();
  ASSERT_EQ(std::system(("cp -a '" + from + "/tree' '" + from + "/copy'").c_str()), 0);
  ASSERT_EQ(std::system(("tar -C '" + from + "' -cf '" + from + "/tree.tar' tree").c_str()), 0);
  EXPECT_EQ(
      std::system(("diff -r '" + at_reader("tree") + "' '" + at_reader("copy") + "'").c_str()), 0);
  EXPECT_EQ(
      std::system(("tar -C '" + at_reader() + "' -df '" + at_reader("tree.tar") + "'").c_str()), 0);
}

}  // namespace
}  // namespace ppmr::mount_cases
