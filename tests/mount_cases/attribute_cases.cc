// stat, chmod, chown, utimensat, access, statfs, xattrs.
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <set>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Attributes : public MountCase {
 protected:
  struct stat seen_at(const std::string& path) {
    struct stat seen {};
    EXPECT_EQ(errno_of(::lstat(path.c_str(), &seen)), 0) << path;
    return seen;
  }
  // Waits until `good` accepts the attributes of `name` at the read side.
  testing::AssertionResult soon_stat(const std::string& name,
                                     const std::function<bool(const struct stat&)>& good) {
    return soon([&]() -> testing::AssertionResult {
      const struct stat seen = seen_at(at_reader(name));
      if (good(seen)) return testing::AssertionSuccess();
      return testing::AssertionFailure()
             << name << ": mode " << std::oct << seen.st_mode << std::dec << " uid " << seen.st_uid
             << " gid " << seen.st_gid << " size " << seen.st_size << " mtime "
             << seen.st_mtim.tv_sec << "." << seen.st_mtim.tv_nsec;
    });
  }
};

TEST_F(Attributes, OfAFileIncludeTypeSizeAndLinkCount) {
  ASSERT_TRUE(write_file(at_writer("file"), pattern(12'345, 1)));
  for (const std::string& path : {at_writer("file"), at_reader("file")}) {
    const struct stat seen = seen_at(path);
    EXPECT_TRUE(S_ISREG(seen.st_mode));
    EXPECT_EQ(seen.st_size, 12'345);
    EXPECT_EQ(seen.st_nlink, 1u);
    EXPECT_GT(seen.st_blksize, 0);
    EXPECT_EQ(seen.st_uid, ::geteuid());
    EXPECT_NE(seen.st_ino, 0u);
  }
}

TEST_F(Attributes, OfADirectoryIncludeItsType) {
  ASSERT_EQ(errno_of(::mkdir(at_writer("d").c_str(), 0755)), 0);
  EXPECT_TRUE(soon_present("d"));
  const struct stat seen = seen_at(at_reader("d"));
  EXPECT_TRUE(S_ISDIR(seen.st_mode));
  EXPECT_GE(seen.st_nlink, 1u);
}

TEST_F(Attributes, InodeNumbersAreDistinctAndStable) {
  ASSERT_TRUE(write_file(at_writer("a"), "a"));
  ASSERT_TRUE(write_file(at_writer("b"), "b"));
  const ino_t a = seen_at(at_reader("a")).st_ino;
  EXPECT_NE(a, seen_at(at_reader("b")).st_ino);
  EXPECT_EQ(a, seen_at(at_reader("a")).st_ino);
}

TEST_F(Attributes, SizeGrowsWithEachWrite) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, std::string(5000, 'x')));
  EXPECT_EQ(seen_at(at_writer("file")).st_size, 5000);
  ASSERT_TRUE(write_whole(fd, std::string(2 * kMiB, 'x')));
  EXPECT_EQ(seen_at(at_writer("file")).st_size, static_cast<off_t>(5000 + 2 * kMiB));
  struct stat seen {};
  ASSERT_EQ(errno_of(::fstat(fd.get(), &seen)), 0);
  EXPECT_EQ(seen.st_size, static_cast<off_t>(5000 + 2 * kMiB));
}

TEST_F(Attributes, ModeIsSetByCreateAndChangedByChmod) {
  const mode_t before = ::umask(0);
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT, 0640);
  const int made = errno_of(::mkdir(at_writer("d").c_str(), 0711));
  ::umask(before);
  ASSERT_TRUE(fd.ok());
  ASSERT_EQ(made, 0);
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(soon_stat("file", [](const auto& seen) { return (seen.st_mode & 07777) == 0640; }));
  EXPECT_TRUE(soon_stat("d", [](const auto& seen) { return (seen.st_mode & 07777) == 0711; }));
  ASSERT_EQ(errno_of(::chmod(at_writer("file").c_str(), 0600)), 0);
  ASSERT_EQ(errno_of(::chmod(at_writer("d").c_str(), 01777)), 0);
  EXPECT_TRUE(soon_stat("file", [](const auto& seen) {
    return S_ISREG(seen.st_mode) && (seen.st_mode & 07777) == 0600;
  }));
  EXPECT_TRUE(soon_stat("d", [](const auto& seen) {
    return S_ISDIR(seen.st_mode) && (seen.st_mode & 07777) == 01777;
  }));
}

TEST_F(Attributes, ModeObeysTheUmask) {
  const mode_t before = ::umask(027);
  const Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT, 0666);
  ::umask(before);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(seen_at(at_writer("file")).st_mode & 0777, 0640u);
}

TEST_F(Attributes, OwnerIsChangedByChown) {
  if (::geteuid() != 0) GTEST_SKIP() << "changing owners needs root";
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  ASSERT_EQ(errno_of(::chown(at_writer("file").c_str(), 1234, 4321)), 0);
  EXPECT_TRUE(soon_stat(
      "file", [](const auto& seen) { return seen.st_uid == 1234 && seen.st_gid == 4321; }));
  ASSERT_EQ(errno_of(::chown(at_writer("file").c_str(), static_cast<uid_t>(-1), 55)), 0);
  EXPECT_TRUE(
      soon_stat("file", [](const auto& seen) { return seen.st_uid == 1234 && seen.st_gid == 55; }));
}

TEST_F(Attributes, OwnerOfASymbolicLinkIsChangedByLchown) {
  if (::geteuid() != 0) GTEST_SKIP() << "changing owners needs root";
  ASSERT_EQ(errno_of(::symlink("nowhere", at_writer("link").c_str())), 0);
  ASSERT_EQ(errno_of(::lchown(at_writer("link").c_str(), 77, 78)), 0);
  EXPECT_TRUE(soon_present("link"));
  EXPECT_TRUE(soon_stat("link", [](const auto& seen) {
    return S_ISLNK(seen.st_mode) && seen.st_uid == 77 && seen.st_gid == 78;
  }));
}

TEST_F(Attributes, TimesAreSetToTheNanosecond) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  ASSERT_EQ(errno_of(::mkdir(at_writer("d").c_str(), 0755)), 0);
  const std::array<timespec, 2> times = {timespec{1'000'000'000, 123'456'789},
                                         timespec{1'234'567'890, 987'654'321}};
  for (const char* name : {"file", "d"}) {
    ASSERT_EQ(errno_of(::utimensat(AT_FDCWD, at_writer(name).c_str(), times.data(), 0)), 0);
    EXPECT_TRUE(soon_present(name));
    EXPECT_TRUE(soon_stat(name, [](const auto& seen) {
      return seen.st_mtim.tv_sec == 1'234'567'890 && seen.st_mtim.tv_nsec == 987'654'321;
    }));
  }
}

TEST_F(Attributes, TimesBefore1970AndAfter2038AreKept) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  for (const time_t second : {time_t{-86'400}, time_t{4'294'967'296}, time_t{0}}) {
    const std::array<timespec, 2> times = {timespec{second, 1}, timespec{second, 500}};
    ASSERT_EQ(errno_of(::utimensat(AT_FDCWD, at_writer("file").c_str(), times.data(), 0)), 0);
    EXPECT_TRUE(soon_stat("file", [&](const auto& seen) {
      return seen.st_mtim.tv_sec == second && seen.st_mtim.tv_nsec == 500;
    })) << second;
  }
}

TEST_F(Attributes, TimesSetToNowAreNow) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const std::array<timespec, 2> old = {timespec{5, 0}, timespec{5, 0}};
  ASSERT_EQ(errno_of(::utimensat(AT_FDCWD, at_writer("file").c_str(), old.data(), 0)), 0);
  ASSERT_EQ(errno_of(::utimensat(AT_FDCWD, at_writer("file").c_str(), nullptr, 0)), 0);
  EXPECT_TRUE(soon_stat("file", [](const auto& seen) {
    return std::abs(seen.st_mtim.tv_sec - ::time(nullptr)) < 120;
  }));
}

TEST_F(Attributes, WriteUpdatesTheModificationTime) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const std::array<timespec, 2> old = {timespec{5, 0}, timespec{5, 0}};
  ASSERT_EQ(errno_of(::utimensat(AT_FDCWD, at_writer("file").c_str(), old.data(), 0)), 0);
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_APPEND);
  ASSERT_TRUE(write_whole(fd, "y"));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(soon_stat("file", [](const auto& seen) {
    return std::abs(seen.st_mtim.tv_sec - ::time(nullptr)) < 120;
  }));
}

TEST_F(Attributes, AccessDependsOnTheMode) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(errno_of(::access(at_writer("file").c_str(), F_OK | R_OK | W_OK)), 0);
  EXPECT_EQ(errno_of(::access(at_reader("file").c_str(), F_OK | R_OK)), 0);
  EXPECT_EQ(errno_of(::access(at_writer("file").c_str(), X_OK)), EACCES);
  EXPECT_EQ(errno_of(::access(at_reader("file").c_str(), X_OK)), EACCES);
  EXPECT_EQ(errno_of(::access(at_writer("missing").c_str(), F_OK)), ENOENT);
  ASSERT_EQ(errno_of(::chmod(at_writer("file").c_str(), 0700)), 0);
  EXPECT_EQ(errno_of(::access(at_writer("file").c_str(), X_OK)), 0);
}

TEST_F(Attributes, StatfsNumbersAreConsistent) {
  for (const std::string& path : {at_writer(), at_reader()}) {
    struct statvfs seen {};
    ASSERT_EQ(errno_of(::statvfs(path.c_str(), &seen)), 0) << path;
    EXPECT_GT(seen.f_bsize, 0u);
    EXPECT_GE(seen.f_blocks, seen.f_bfree);
    EXPECT_GE(seen.f_bfree, seen.f_bavail);
    EXPECT_GE(seen.f_namemax, 255u);
  }
  Fd directory = open_file(at_writer(), O_RDONLY);
  struct statfs seen {};
  EXPECT_EQ(errno_of(::fstatfs(directory.get(), &seen)), 0);
}

TEST_F(Attributes, MissingExtendedAttributeIsENODATA) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  std::array<char, 256> value{};
  for (const std::string& path : {at_writer("file"), at_reader("file"), at_writer(), at_reader()}) {
    EXPECT_EQ(errno_of(::getxattr(path.c_str(), "user.missing", value.data(), value.size())),
              ENODATA)
        << path;
    const ssize_t length = ::listxattr(path.c_str(), value.data(), value.size());
    EXPECT_EQ(length, 0) << path << ": "
                         << std::string(value.data(),
                                        static_cast<size_t>(std::max<ssize_t>(length, 0)));
    EXPECT_EQ(::listxattr(path.c_str(), nullptr, 0), 0) << path;
  }
  EXPECT_EQ(errno_of(::getxattr(at_writer("file").c_str(), "security.capability", value.data(),
                                value.size())),
            ENODATA);
  EXPECT_EQ(
      errno_of(::getxattr(at_writer("gone").c_str(), "user.missing", value.data(), value.size())),
      ENOENT);
}

TEST_F(Attributes, SetxattrStoresTheAttributeOrIsEOPNOTSUPP) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const int error = errno_of(::setxattr(at_writer("file").c_str(), "user.colour", "blue", 4, 0));
  if (error == EOPNOTSUPP) return;  // the answer of ppmr, and of tmpfs before Linux 6.6
  ASSERT_EQ(error, 0) << errno_name(error);
  std::array<char, 16> value{};
  EXPECT_EQ(::getxattr(at_writer("file").c_str(), "user.colour", value.data(), value.size()), 4);
}

}  // namespace
}  // namespace ppmr::mount_cases
