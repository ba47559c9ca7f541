#include "preflight/shared_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

FileFact file(const std::string& path, const std::string& digest, pid_t pid) {
  FileFact fact;
  fact.path = path;
  fact.type = "file";
  fact.digest = digest;
  fact.pid = pid;
  return fact;
}

std::vector<PreflightQuestions> questions_of_two() {
  PreflightQuestions one;
  one.boot_id = "boot";
  one.processor = "fast";
  one.processes = {{.pid = 10, .user = 1, .bundle = ""}};
  one.pids = {10, 11};
  one.files = {file("/lib", "aa", 10), file("/one", "bb", 10)};
  one.addresses = {"10.0.0.1", "10.0.0.2"};
  one.listeners = {{"tcp", "10.0.0.1", 80}};
  PreflightQuestions two = one;
  two.processes = {{.pid = 20, .user = 2, .bundle = ""}};
  two.pids = {20};
  two.files = {file("/lib", "aa", 20), file("/one", "", 20), file("/two", "cc", 20)};
  two.addresses = {"10.0.0.2"};
  two.listeners = {{"tcp", "10.0.0.1", 81}};
  return {one, two};
}

TEST(SharedQuestions, AskOnceAboutWhatTreesShare) {
  const SharedQuestions shared(questions_of_two());
  EXPECT_EQ(shared.all().boot_id, "boot");
  EXPECT_EQ(shared.all().processor, "fast");
  EXPECT_THAT(shared.all().processes, SizeIs(2));
  EXPECT_THAT(shared.all().pids, ElementsAre(10, 11, 20));
  EXPECT_THAT(shared.all().addresses, ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_THAT(shared.all().listeners, SizeIs(2));
  // Only one of the trees knows the digest of /one.
  EXPECT_THAT(shared.all().files, SizeIs(4));
}

TEST(SharedQuestions, GiveEachTreeItsOwnAnswers) {
  const SharedQuestions shared(questions_of_two());
  PreflightAnswers answers;
  answers.pids_taken = {11, 20};
  answers.addresses_missing = {"10.0.0.1"};
  answers.listeners_taken = {{"tcp", "10.0.0.1", 81}};
  answers.files = {FileVerdict::kSame, FileVerdict::kOtherContent, FileVerdict::kUnchecked,
                   FileVerdict::kMissing};
  const PreflightAnswers one = shared.answers_for(0, answers);
  EXPECT_THAT(one.pids_taken, ElementsAre(11));
  EXPECT_THAT(one.addresses_missing, ElementsAre("10.0.0.1"));
  EXPECT_THAT(one.listeners_taken, IsEmpty());
  EXPECT_THAT(one.files, ElementsAre(FileVerdict::kSame, FileVerdict::kOtherContent));
  const PreflightAnswers two = shared.answers_for(1, answers);
  EXPECT_THAT(two.pids_taken, ElementsAre(20));
  EXPECT_THAT(two.addresses_missing, IsEmpty());
  EXPECT_THAT(two.listeners_taken, SizeIs(1));
  EXPECT_THAT(two.files,
              ElementsAre(FileVerdict::kSame, FileVerdict::kUnchecked, FileVerdict::kMissing));
}

TEST(SharedQuestions, GiveEachTreeTheAnswersAboutItsContainers) {
  std::vector<PreflightQuestions> each = questions_of_two();
  each[0].containers.resize(1);
  each[1].containers.resize(2);
  const SharedQuestions shared(each);
  ASSERT_THAT(shared.all().containers, SizeIs(3));
  PreflightAnswers answers;
  answers.files.resize(4);
  answers.containers.resize(3);
  EXPECT_THAT(shared.answers_for(0, answers).containers, SizeIs(1));
  EXPECT_THAT(shared.answers_for(1, answers).containers, SizeIs(2));
}

}  // namespace
}  // namespace ppmr
