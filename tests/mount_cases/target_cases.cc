// What only a mount pair can show: reading what is still being written, a read side that takes no
// writes, sealing.
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class AcrossTheMounts : public MountCase {
 protected:
  void SetUp() override {
    MountCase::SetUp();
    if (!expects().reader_is_elsewhere) GTEST_SKIP() << "needs a source mount and a target mount";
  }
  int commit() {
    return std::system((settings().ppmr + " commit '" + at_writer() + "' > /dev/null").c_str());
  }
};

TEST_F(AcrossTheMounts, AReaderWhoStartsEarlyGetsEveryByteAndThenTheEnd) {
  const std::string bytes = pattern(6 * kMiB + 4097, 1);
  Fd out = open_file(at_writer("pages-1.img"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(soon([&] { return is_present(at_reader()); }));
  std::string got;
  int error = 0;
  std::thread reader([&] {
    Fd in;
    while (!(in = open_file(at_reader("pages-1.img"), O_RDONLY)).ok() && errno == ENOENT)
      std::this_thread::yield();
    std::vector<char> buffer(300'000);
    ssize_t count = 0;
    while ((count = ::read(in.get(), buffer.data(), buffer.size())) > 0)
      got.append(buffer.data(), static_cast<size_t>(count));
    error = count < 0 ? errno : 0;
  });
  for (size_t at = 0; at < bytes.size(); at += 400'000) {
    EXPECT_TRUE(write_whole(out, std::string_view(bytes).substr(at, 400'000)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(out.close(), 0);
  reader.join();
  EXPECT_EQ(error, 0) << errno_name(error);
  EXPECT_TRUE(same_bytes(got, bytes));
}

TEST_F(AcrossTheMounts, AReadOfWhatComesLaterWaitsForIt) {
  Fd out = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(write_whole(out, std::string(2 * kMiB, 'a')));
  ASSERT_EQ(errno_of(::fsync(out.get())), 0);
  std::string got(5, '\0');
  ssize_t count = 0;
  std::thread reader([&] {
    Fd in = open_file(at_reader("file"), O_RDONLY);
    count = ::pread(in.get(), got.data(), got.size(), 2 * kMiB);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_TRUE(write_whole(out, "later"));
  ASSERT_EQ(out.close(), 0);
  reader.join();
  EXPECT_EQ(count, 5);
  EXPECT_EQ(got, "later");
}

TEST_F(AcrossTheMounts, TheReadSideTakesNoWrites) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const auto refused = [](int error) {
    return error == EROFS || error == EACCES || error == EPERM || error == EOPNOTSUPP;
  };
  const auto open_error = [&](int flags, const std::string& name) {
    return errno_of(::open(at_reader(name).c_str(), flags, 0644));
  };
  EXPECT_PRED1(refused, open_error(O_WRONLY, "file"));
  EXPECT_PRED1(refused, open_error(O_RDWR | O_TRUNC, "file"));
  EXPECT_PRED1(refused, open_error(O_WRONLY | O_CREAT, "fresh"));
  EXPECT_PRED1(refused, errno_of(::mkdir(at_reader("d").c_str(), 0755)));
  EXPECT_PRED1(refused, errno_of(::symlink("x", at_reader("link").c_str())));
  EXPECT_PRED1(refused, errno_of(::truncate(at_reader("file").c_str(), 0)));
  EXPECT_TRUE(reads_as(at_reader("file"), "x"));
  EXPECT_TRUE(reads_as(at_writer("file"), "x"));
}

TEST_F(AcrossTheMounts, WhatIsStillOpenIsNotRemovedAtTheTarget) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(errno_of(::unlink(at_reader("file").c_str())), EBUSY);
  EXPECT_TRUE(reads_as(at_writer("file"), "x"));
}

TEST_F(AcrossTheMounts, WhatIsSealedTakesNoMoreBytesAndCanBeRemovedAtTheTarget) {
  if (settings().ppmr.empty()) GTEST_SKIP() << "--ppmr is not given, so nothing can be sealed";
  ASSERT_EQ(errno_of(::mkdir(at_writer("d").c_str(), 0755)), 0);
  ASSERT_TRUE(write_file(at_writer("d/file"), pattern(2 * kMiB, 1)));
  ASSERT_EQ(commit(), 0);
  EXPECT_NE(errno_of(::open(at_writer("late").c_str(), O_WRONLY | O_CREAT, 0644)), 0)
      << "a sealed checkpoint takes no files";
  EXPECT_TRUE(reads_as(at_reader("d/file"), pattern(2 * kMiB, 1)));
  std::error_code error;
  std::filesystem::remove_all(at_reader(), error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_TRUE(is_absent(at_reader()));
}

TEST_F(AcrossTheMounts, CommittingTwiceIsCommittingOnce) {
  if (settings().ppmr.empty()) GTEST_SKIP() << "--ppmr is not given, so nothing can be sealed";
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(commit(), 0);
  EXPECT_EQ(commit(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "x"));
  std::error_code error;
  std::filesystem::remove_all(at_reader(), error);
  EXPECT_FALSE(error) << error.message();
}

}  // namespace
}  // namespace ppmr::mount_cases
