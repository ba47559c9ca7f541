// Cases that need both mounts: reading a file while it is written, a read-only read side, sealing.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
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
  // Checks that the thread is blocked in pread(2).
  static testing::AssertionResult is_in_pread(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
    std::string number;
    file >> number;
    if (number == std::to_string(SYS_pread64)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "thread " << thread << " is in system call " << number;
  }
};

TEST_F(AcrossTheMounts, ReaderOfAGrowingFileReceivesEveryByteAndThenEndOfFile) {
  const std::string bytes = pattern(6 * kMiB + 4097, 1);
  Fd out = open_file(at_writer("pages-1.img"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(soon([&] { return is_present(at_reader()); }));
  std::string got;
  std::atomic<size_t> received = 0;
  std::atomic<int> error = 0;
  std::thread reader([&] {
    Fd in;
    while (!(in = open_file(at_reader("pages-1.img"), O_RDONLY)).ok() && errno == ENOENT)
      std::this_thread::yield();
    std::vector<char> buffer(300'000);
    ssize_t count = 0;
    while ((count = ::read(in.get(), buffer.data(), buffer.size())) > 0) {
      got.append(buffer.data(), static_cast<size_t>(count));
      received = got.size();
    }
    error = count < 0 ? errno : 0;
  });
  // In the first half the writer waits for the reader after each piece, so the reader reads a
  // growing file.
  for (size_t at = 0; at < bytes.size(); at += 400'000) {
    EXPECT_TRUE(write_whole(out, std::string_view(bytes).substr(at, 400'000)));
    while (at < bytes.size() / 2 && received <= at && error == 0) std::this_thread::yield();
  }
  EXPECT_EQ(out.close(), 0);
  reader.join();
  EXPECT_EQ(error, 0) << errno_name(error);
  EXPECT_TRUE(same_bytes(got, bytes));
}

TEST_F(AcrossTheMounts, ReadBlocksUntilItsBytesArrive) {
  Fd out = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(write_whole(out, std::string(2 * kMiB, 'a')));
  ASSERT_EQ(errno_of(::fsync(out.get())), 0);
  std::string got(5, '\0');
  ssize_t count = 0;
  std::atomic<pid_t> reader_id = 0;
  std::thread reader([&] {
    Fd in = open_file(at_reader("file"), O_RDONLY);
    reader_id = ::gettid();
    count = ::pread(in.get(), got.data(), got.size(), 2 * kMiB);
  });
  EXPECT_TRUE(soon([&] { return is_in_pread(reader_id); }));
  ASSERT_TRUE(write_whole(out, "later"));
  ASSERT_EQ(out.close(), 0);
  reader.join();
  EXPECT_EQ(count, 5);
  EXPECT_EQ(got, "later");
}

TEST_F(AcrossTheMounts, TargetMountRefusesWrites) {
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

TEST_F(AcrossTheMounts, OpenCheckpointIsNotRemovedAtTheTarget) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(errno_of(::unlink(at_reader("file").c_str())), EBUSY);
  EXPECT_TRUE(reads_as(at_writer("file"), "x"));
}

TEST_F(AcrossTheMounts, SealedCheckpointRefusesWritesAndCanBeRemovedAtTheTarget) {
  if (settings().ppmr.empty()) GTEST_SKIP() << "--ppmr is missing: cannot seal a checkpoint";
  ASSERT_EQ(errno_of(::mkdir(at_writer("d").c_str(), 0755)), 0);
  ASSERT_TRUE(write_file(at_writer("d/file"), pattern(2 * kMiB, 1)));
  ASSERT_EQ(commit(), 0);
  EXPECT_NE(errno_of(::open(at_writer("late").c_str(), O_WRONLY | O_CREAT, 0644)), 0)
      << "a sealed checkpoint accepts a new file";
  EXPECT_TRUE(reads_as(at_reader("d/file"), pattern(2 * kMiB, 1)));
  std::error_code error;
  std::filesystem::remove_all(at_reader(), error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_TRUE(is_absent(at_reader()));
}

TEST_F(AcrossTheMounts, CommitIsIdempotent) {
  if (settings().ppmr.empty()) GTEST_SKIP() << "--ppmr is missing: cannot seal a checkpoint";
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
