#include "preflight/criu_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A program replaces CRIU and records each call.
class CriuAnswersTest : public testing::Test {
 protected:
  CriuAnswersTest() {
    directory_ = std::filesystem::temp_directory_path() / "criu-of-a-test-XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    std::ofstream(program())
        << "#!/bin/sh\n"
           "echo \"$1 $2\" >> "
        << directory_
        << "/calls\n"
           "case \"$*\" in\n"
           "  --version) echo 'Version: 4.2.1' ;;\n"
           "  check) echo 'Error (criu/cr-check.c:1): no such kernel'; exit 1 ;;\n"
           "  *uffd-noncoop) ;;\n"
           "  cpuinfo*) ;;\n"
           "  *) exit 1 ;;\n"
           "esac\n";
    chmod(program().c_str(), 0700);
  }
  ~CriuAnswersTest() override { std::filesystem::remove_all(directory_); }

  std::string program() const { return directory_ + "/criu"; }
  size_t calls() const {
    std::ifstream file(directory_ + "/calls");
    size_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  std::string directory_;
};

TEST_F(CriuAnswersTest, ReadVersionAndFeatures) {
  CriuAnswers criu(program());
  EXPECT_EQ(criu.facts().path, program());
  EXPECT_EQ(criu.facts().version, "4.2.1");
  EXPECT_THAT(criu.facts().problem, HasSubstr("no such kernel"));
  EXPECT_THAT(criu.facts().features, ElementsAre(kLazyFeature));
}

TEST_F(CriuAnswersTest, AskEachQuestionOnce) {
  CriuAnswers criu(program());
  (void)criu.facts();
  const size_t once = calls();
  EXPECT_GE(once, 3u);
  (void)criu.facts();
  EXPECT_EQ(calls(), once);
  const std::string processor = "1943565413404061";  // an image without entries
  EXPECT_TRUE(criu.check_processor(processor).has_value());
  EXPECT_TRUE(criu.check_processor(processor).has_value());
  EXPECT_EQ(calls(), once + 1);
  EXPECT_TRUE(criu.check_processor(processor + "00").has_value());
  EXPECT_EQ(calls(), once + 2);
}

TEST(CriuAnswers, AreEmptyWithoutCriu) {
  CriuAnswers criu("");
  EXPECT_EQ(criu.facts().path, "");
  EXPECT_EQ(criu.facts().version, "");
  EXPECT_THAT(criu.facts().features, ElementsAre());
}

}  // namespace
}  // namespace ppmr
