// Length, bytes and depth of names.
#include <unistd.h>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

using Name = MountCase;

TEST_F(Name, Of255BytesIsAccepted) {
  const std::string file(255, 'n');
  const std::string directory(255, 'd');
  const std::string link(255, 'l');
  ASSERT_TRUE(write_file(at_writer(file), "long"));
  ASSERT_EQ(errno_of(::mkdir(at_writer(directory).c_str(), 0755)), 0);
  ASSERT_EQ(errno_of(::symlink("x", at_writer(link).c_str())), 0);
  EXPECT_TRUE(reads_as(at_reader(file), "long"));
  EXPECT_TRUE(soon_lists("", {file, directory, link}));
}

TEST_F(Name, Of256BytesIsENAMETOOLONG) {
  const std::string name(256, 'n');
  ASSERT_TRUE(write_file(at_writer("short"), "x"));
  EXPECT_EQ(errno_of(::open(at_writer(name).c_str(), O_WRONLY | O_CREAT, 0644)), ENAMETOOLONG);
  EXPECT_EQ(errno_of(::mkdir(at_writer(name).c_str(), 0755)), ENAMETOOLONG);
  EXPECT_EQ(errno_of(::symlink("x", at_writer(name).c_str())), ENAMETOOLONG);
  EXPECT_EQ(errno_of(::rename(at_writer("short").c_str(), at_writer(name).c_str())), ENAMETOOLONG);
  struct stat seen {};
  EXPECT_EQ(errno_of(::stat(at_writer(name).c_str(), &seen)), ENAMETOOLONG);
  EXPECT_EQ(errno_of(::stat(at_reader(name).c_str(), &seen)), ENAMETOOLONG);
  EXPECT_TRUE(soon_lists("", {"short"}));
}

TEST_F(Name, MayContainNonAsciiCharactersSpacesAndNewlines) {
  const std::vector<std::string> names = {
      "größe",       "中文文件",   "имя",       "🧊 ice", "a b",     "new\nline", "tab\t",
      "back\\slash", "\"quoted\"", "percent%s", "-dash",    ".hidden", "...",       "*?[]"};
  for (const std::string& name : names) ASSERT_TRUE(write_file(at_writer(name), name)) << name;
  for (const std::string& name : names) EXPECT_TRUE(reads_as(at_reader(name), name)) << name;
  EXPECT_TRUE(soon_lists("", names));
}

TEST_F(Name, MayBeInvalidUtf8) {
  const std::string name = "latin-\xe9-\xff\xfe";
  ASSERT_TRUE(write_file(at_writer(name), "bytes"));
  EXPECT_TRUE(reads_as(at_reader(name), "bytes"));
  EXPECT_TRUE(soon_lists("", {name}));
}

TEST_F(Name, IsCaseSensitive) {
  ASSERT_TRUE(write_file(at_writer("name"), "small"));
  ASSERT_TRUE(write_file(at_writer("NAME"), "large"));
  EXPECT_TRUE(reads_as(at_reader("name"), "small"));
  EXPECT_TRUE(reads_as(at_reader("NAME"), "large"));
}

TEST_F(Name, MayBeSixtyDirectoriesDeep) {
  std::string path;
  for (int depth = 0; depth < 60; ++depth) {
    path += (depth == 0 ? "" : "/") + std::string("level-") + std::to_string(depth);
    ASSERT_EQ(errno_of(::mkdir(at_writer(path).c_str(), 0755)), 0) << path;
  }
  ASSERT_TRUE(write_file(at_writer(path + "/file"), "deep"));
  EXPECT_TRUE(reads_as(at_reader(path + "/file"), "deep"));
}

TEST_F(Name, MayBeDotDotInsideAPath) {
  ASSERT_EQ(errno_of(::mkdir(at_writer("a").c_str(), 0755)), 0);
  ASSERT_TRUE(write_file(at_writer("a/../file"), "dots"));
  EXPECT_TRUE(soon_present("a"));
  EXPECT_TRUE(reads_as(at_reader("./a/.././file"), "dots"));
}

TEST_F(Name, MayBeThePrefixOfAnotherName) {
  ASSERT_TRUE(write_file(at_writer("pages-1.img"), "one"));
  ASSERT_TRUE(write_file(at_writer("pages-1"), "short"));
  ASSERT_TRUE(write_file(at_writer("pages-1.img.temp"), "long"));
  EXPECT_TRUE(reads_as(at_reader("pages-1"), "short"));
  EXPECT_TRUE(reads_as(at_reader("pages-1.img"), "one"));
  EXPECT_TRUE(reads_as(at_reader("pages-1.img.temp"), "long"));
}

}  // namespace
}  // namespace ppmr::mount_cases
