// mkdir, rmdir, readdir.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Directory : public MountCase {
 protected:
  int make(const std::string& name) { return errno_of(::mkdir(at_writer(name).c_str(), 0755)); }
  int remove(const std::string& name) { return errno_of(::rmdir(at_writer(name).c_str())); }
};

TEST_F(Directory, IsCreatedAndRemoved) {
  ASSERT_EQ(make("d"), 0);
  EXPECT_TRUE(soon_present("d"));
  ASSERT_EQ(remove("d"), 0);
  EXPECT_TRUE(soon_absent("d"));
  ASSERT_EQ(make("d"), 0);
  EXPECT_TRUE(soon_present("d"));
}

TEST_F(Directory, IsNotRemovedUnlessEmpty) {
  ASSERT_EQ(make("d"), 0);
  ASSERT_TRUE(write_file(at_writer("d/file"), "x"));
  EXPECT_EQ(remove("d"), ENOTEMPTY);
  ASSERT_EQ(errno_of(::unlink(at_writer("d/file").c_str())), 0);
  EXPECT_EQ(remove("d"), 0);
  EXPECT_TRUE(soon_absent("d"));
}

TEST_F(Directory, MkdirOfAnExistingNameIsEEXIST) {
  ASSERT_EQ(make("d"), 0);
  EXPECT_EQ(make("d"), EEXIST);
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(make("file"), EEXIST);
}

TEST_F(Directory, MissingDirectoryIsENOENT) {
  EXPECT_EQ(remove("missing"), ENOENT);
  EXPECT_EQ(make("missing/d"), ENOENT);
  EXPECT_EQ(errno_of(::open(at_writer("missing/file").c_str(), O_WRONLY | O_CREAT, 0644)), ENOENT);
}

TEST_F(Directory, MkdirRmdirAndUnlinkRefuseTheWrongFileType) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  ASSERT_EQ(make("d"), 0);
  EXPECT_EQ(make("file/d"), ENOTDIR);
  EXPECT_EQ(remove("file"), ENOTDIR);
  EXPECT_EQ(errno_of(::unlink(at_writer("d").c_str())), EISDIR);
}

TEST_F(Directory, ReadAndWriteAreRefused) {
  Fd fd = open_file(at_writer(), O_RDONLY);
  ASSERT_TRUE(fd.ok());
  char byte = 0;
  EXPECT_EQ(errno_of(::read(fd.get(), &byte, 1)), EISDIR);
  EXPECT_EQ(errno_of(::open(at_writer().c_str(), O_WRONLY)), EISDIR);
}

TEST_F(Directory, LinkCountIncludesSubdirectories) {
  for (const char* name : {"from", "to", "from/moved", "from/removed", "from/stays"}) {
    ASSERT_EQ(make(name), 0);
  }
  ASSERT_TRUE(write_file(at_writer("from/file"), "x"));
  ASSERT_EQ(errno_of(::rename(at_writer("from/moved").c_str(), at_writer("to/moved").c_str())), 0);
  ASSERT_EQ(errno_of(::rmdir(at_writer("from/removed").c_str())), 0);
  const auto has_links = [&](const std::string& path, nlink_t wanted) -> testing::AssertionResult {
    struct stat seen {};
    const int error = errno_of(::stat(path.c_str(), &seen));
    if (error == 0 && seen.st_nlink == wanted) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << path << ": " << seen.st_nlink << " links, error " << error;
  };
  for (const auto& [name, wanted] : {std::pair("", 4), std::pair("from", 3), std::pair("to", 3)}) {
    EXPECT_TRUE(has_links(at_writer(name), static_cast<nlink_t>(wanted)));
    EXPECT_TRUE(soon([&] { return has_links(at_reader(name), static_cast<nlink_t>(wanted)); }));
  }
}

TEST_F(Directory, ListsEachOfAThousandNamesOnceWithItsType) {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) {
    names.push_back("a rather long name so that several calls are needed, number " +
                    std::to_string(i));
    const std::string path = at_writer(names.back());
    if (i % 50 == 0) {
      ASSERT_EQ(errno_of(::mkdir(path.c_str(), 0755)), 0);
    } else if (i % 50 == 1) {
      ASSERT_EQ(errno_of(::symlink("nowhere", path.c_str())), 0);
    } else {
      ASSERT_TRUE(write_file(path, ""));
    }
  }
  EXPECT_TRUE(soon_lists("", names));

  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(at_reader().c_str()), &::closedir);
  ASSERT_NE(directory, nullptr);
  int dots = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") {
      ++dots;
      continue;
    }
    if (entry->d_type == DT_UNKNOWN) continue;  // POSIX allows DT_UNKNOWN
    struct stat seen {};
    ASSERT_EQ(errno_of(::lstat(at_reader(name).c_str(), &seen)), 0);
    EXPECT_EQ(DTTOIF(entry->d_type), seen.st_mode & S_IFMT) << name;
  }
  EXPECT_EQ(dots, 2);
}

TEST_F(Directory, CanBeEmptiedWhileListed) {
  for (int i = 0; i < 1000; ++i)
    ASSERT_TRUE(write_file(at_writer("entry-" + std::to_string(i)), ""));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(at_writer().c_str()), &::closedir);
  ASSERT_NE(directory, nullptr);
  std::set<std::string> seen;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    EXPECT_TRUE(seen.insert(name).second) << name << " was listed twice";
    ASSERT_EQ(errno_of(::unlink(at_writer(name).c_str())), 0) << name;
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(list_directory(at_writer()).empty());
  EXPECT_TRUE(soon_lists("", {}));
}

TEST_F(Directory, RewindShowsNewEntries) {
  ASSERT_TRUE(write_file(at_writer("one"), ""));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(at_writer().c_str()), &::closedir);
  ASSERT_NE(directory, nullptr);
  while (::readdir(directory.get()) != nullptr) {
  }
  ASSERT_TRUE(write_file(at_writer("two"), ""));
  ::rewinddir(directory.get());
  std::set<std::string> names;
  while (const dirent* entry = ::readdir(directory.get())) names.insert(entry->d_name);
  EXPECT_EQ(names, (std::set<std::string>{".", "..", "one", "two"}));
}

TEST_F(Directory, TopLevelEntriesAreListed) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const std::vector<std::string> names = list_directory(settings().read_dir);
  EXPECT_EQ(std::count(names.begin(), names.end(), top()), 1);
}

TEST_F(Directory, DescriptorWorksWithOpenatAndUnlinkat) {
  Fd directory = open_file(at_writer(), O_RDONLY | O_DIRECTORY);
  ASSERT_TRUE(directory.ok());
  Fd file(::openat(directory.get(), "core-1.img", O_WRONLY | O_CREAT | O_TRUNC, 0644));
  ASSERT_TRUE(file.ok()) << errno_name(errno);
  ASSERT_TRUE(write_whole(file, "core"));
  ASSERT_EQ(file.close(), 0);
  EXPECT_EQ(errno_of(::unlinkat(directory.get(), "never-written.img", 0)), ENOENT);
  EXPECT_EQ(errno_of(::fsync(directory.get())), 0);
  EXPECT_TRUE(reads_as(at_reader("core-1.img"), "core"));
}

}  // namespace
}  // namespace ppmr::mount_cases
