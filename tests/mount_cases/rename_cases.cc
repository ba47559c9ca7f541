// rename(2) and renameat2(2).
#include <stdio.h>
#include <unistd.h>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Rename : public MountCase {
 protected:
  int rename(const std::string& from, const std::string& to) {
    return errno_of(::rename(at_writer(from).c_str(), at_writer(to).c_str()));
  }
  int rename(const std::string& from, const std::string& to, unsigned flags) {
    return errno_of(
        ::renameat2(AT_FDCWD, at_writer(from).c_str(), AT_FDCWD, at_writer(to).c_str(), flags));
  }
  int make(const std::string& name) { return errno_of(::mkdir(at_writer(name).c_str(), 0755)); }
};

TEST_F(Rename, KeepsTheBytesOfAFile) {
  ASSERT_TRUE(write_file(at_writer("old"), pattern(100'000, 1)));
  ASSERT_EQ(rename("old", "new"), 0);
  EXPECT_TRUE(soon_absent("old"));
  EXPECT_TRUE(soon_reads_as("new", pattern(100'000, 1)));
  EXPECT_TRUE(is_absent(at_writer("old")));
}

TEST_F(Rename, ReplacesAnExistingFile) {
  ASSERT_TRUE(write_file(at_writer("old"), pattern(100'000, 1)));
  ASSERT_TRUE(write_file(at_writer("new"), pattern(200'000, 2)));
  EXPECT_TRUE(reads_as(at_reader("new"), pattern(200'000, 2)));
  ASSERT_EQ(rename("old", "new"), 0);
  EXPECT_TRUE(soon_reads_as("new", pattern(100'000, 1)));
  EXPECT_TRUE(soon_lists("", {"new"}));
}

TEST_F(Rename, OfADirectoryMovesItsChildren) {
  ASSERT_EQ(make("old"), 0);
  ASSERT_EQ(make("old/inner"), 0);
  ASSERT_TRUE(write_file(at_writer("old/inner/file"), "inside"));
  ASSERT_EQ(rename("old", "new"), 0);
  EXPECT_TRUE(soon_reads_as("new/inner/file", "inside"));
  EXPECT_TRUE(soon_absent("old"));
}

TEST_F(Rename, MovesFilesAndDirectoriesIntoAnotherDirectory) {
  ASSERT_EQ(make("a"), 0);
  ASSERT_EQ(make("b"), 0);
  ASSERT_EQ(make("a/tree"), 0);
  ASSERT_TRUE(write_file(at_writer("a/file"), "moved"));
  ASSERT_TRUE(write_file(at_writer("a/tree/leaf"), "leaf"));
  ASSERT_EQ(rename("a/file", "b/file"), 0);
  ASSERT_EQ(rename("a/tree", "b/tree"), 0);
  EXPECT_TRUE(soon_reads_as("b/file", "moved"));
  EXPECT_TRUE(soon_reads_as("b/tree/leaf", "leaf"));
  EXPECT_TRUE(soon_lists("a", {}));
}

TEST_F(Rename, OntoItselfChangesNothing) {
  ASSERT_TRUE(write_file(at_writer("file"), "same"));
  ASSERT_EQ(rename("file", "file"), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "same"));
}

TEST_F(Rename, NoReplaceKeepsTheExistingFile) {
  ASSERT_TRUE(write_file(at_writer("old"), "old"));
  ASSERT_TRUE(write_file(at_writer("new"), "new"));
  EXPECT_EQ(rename("old", "new", RENAME_NOREPLACE), EEXIST);
  EXPECT_TRUE(reads_as(at_reader("new"), "new"));
  EXPECT_TRUE(reads_as(at_reader("old"), "old"));
  EXPECT_EQ(rename("old", "free", RENAME_NOREPLACE), 0);
  EXPECT_TRUE(soon_reads_as("free", "old"));
}

TEST_F(Rename, ExchangeSwapsBothFilesOrChangesNothing) {
  ASSERT_TRUE(write_file(at_writer("a"), "was a"));
  ASSERT_TRUE(write_file(at_writer("b"), "was b"));
  const int error = rename("a", "b", RENAME_EXCHANGE);
  if (expects().rename_exchange) {
    ASSERT_EQ(error, 0) << errno_name(error);
  } else if (error != 0 && error != EINVAL) {
    EXPECT_TRUE(is_refusal(error));
  }
  EXPECT_TRUE(soon_reads_as("a", error == 0 ? "was b" : "was a"));
  EXPECT_TRUE(soon_reads_as("b", error == 0 ? "was a" : "was b"));
}

TEST_F(Rename, ReplacesADirectoryOnlyIfEmptyAndOnlyByADirectory) {
  ASSERT_EQ(make("d"), 0);
  ASSERT_EQ(make("full"), 0);
  ASSERT_TRUE(write_file(at_writer("full/file"), "x"));
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  const int full = rename("d", "full");
  EXPECT_TRUE(full == ENOTEMPTY || full == EEXIST) << errno_name(full);
  EXPECT_EQ(rename("file", "d"), EISDIR);
  EXPECT_EQ(rename("d", "file"), ENOTDIR);
  ASSERT_EQ(make("empty"), 0);
  EXPECT_EQ(rename("full", "empty"), 0);
  EXPECT_TRUE(soon_reads_as("empty/file", "x"));
  EXPECT_TRUE(soon_absent("full"));
}

TEST_F(Rename, OfADirectoryIntoItsOwnSubtreeIsEINVAL) {
  ASSERT_EQ(make("d"), 0);
  ASSERT_EQ(make("d/inner"), 0);
  EXPECT_EQ(rename("d", "d/inner/d"), EINVAL);
}

TEST_F(Rename, OfAMissingFileIsENOENT) {
  EXPECT_EQ(rename("missing", "new"), ENOENT);
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(rename("file", "missing/file"), ENOENT);
}

TEST_F(Rename, OfAnOpenFileKeepsItsDescriptorWritable) {
  Fd fd = open_file(at_writer("old"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, "before "));
  ASSERT_EQ(rename("old", "new"), 0);
  ASSERT_TRUE(write_whole(fd, "after"));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("new"), "before after"));
  EXPECT_TRUE(soon_absent("old"));
}

TEST_F(Rename, OverAnOpenFileKeepsItsDescriptorWritable) {
  Fd replaced = open_file(at_writer("new"), O_RDWR | O_CREAT);
  ASSERT_TRUE(replaced.ok());
  ASSERT_TRUE(write_whole(replaced, "replaced"));
  ASSERT_TRUE(write_file(at_writer("old"), "moved"));
  ASSERT_EQ(rename("old", "new"), 0);
  ASSERT_TRUE(write_whole(replaced, ", still written"));
  ASSERT_EQ(replaced.close(), 0);
  EXPECT_TRUE(soon_reads_as("new", "moved"));
}

// DMTCP writes one top-level image under a temporary name and renames it at the end.
TEST_F(Rename, OfATopLevelFileRenamesTheCheckpoint) {
  const std::string temporary = "/" + top() + ".dmtcp.temp";
  const std::string final = "/" + top() + ".dmtcp";
  ASSERT_TRUE(write_file(settings().write_dir + temporary, pattern(kMiB + 1, 1)));
  ASSERT_EQ(errno_of(::rename((settings().write_dir + temporary).c_str(),
                              (settings().write_dir + final).c_str())),
            0);
  EXPECT_TRUE(soon([&] { return reads_as(settings().read_dir + final, pattern(kMiB + 1, 1)); }));
  EXPECT_TRUE(soon([&] { return is_absent(settings().read_dir + temporary); }));
  EXPECT_EQ(errno_of(::unlink((settings().write_dir + final).c_str())), 0);
}

}  // namespace
}  // namespace ppmr::mount_cases
