// Tests the target's answers with real files and processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_message.h"
#include "base/json_text.h"
#include "base/unique_fd.h"
#include "preflight/file_digest.h"
#include "preflight/preflight.h"
#include "processes/process_identity.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kDigestOfAbc =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class Preflight : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "preflight_answer_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    questions_.boot_id = "of another machine";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  FileFact abc(const std::string& name) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << "abc";
    chmod(path.c_str(), 0644);
    return {.path = path,
            .type = "file",
            .filesystem = "ext4",
            .size_bytes = 3,
            .mode = 0644,
            .digest = kDigestOfAbc};
  }
  PreflightAnswers ask() { return ask(criu_); }
  PreflightAnswers ask(CriuAnswers& criu) {
    const json request = json::parse(json_text(to_request(make_request(questions_))));
    const auto arrived = read_one<PreflightRequest>(request);
    EXPECT_TRUE(arrived) << arrived.error().message;
    const json answer = answer_preflight(arrived.value_or(PreflightRequest{}), context_, criu);
    auto answers = read_answers(answer, questions_);
    EXPECT_TRUE(answers.has_value()) << answers.error().message;
    return answers.value_or(PreflightAnswers{});
  }
  FileVerdict compare(const FileFact& file) {
    questions_.files = {file};
    const PreflightAnswers answers = ask();
    return answers.files.empty() ? FileVerdict::kVerdictCount : answers.files[0];
  }

  std::string directory_;
  PreflightQuestions questions_;
  TargetContext context_{.restart_policy = {}, .store_free_bytes = 12345, .drained_mount = "/in"};
  CriuAnswers criu_{"/bin/false"};
};

TEST_F(Preflight, ComparesFilesWithoutRevealingTheirDigestsOrPaths) {
  FileFact file = abc("file");
  EXPECT_EQ(compare(file), FileVerdict::kSame);
  file.digest[0] = 'c';
  EXPECT_EQ(compare(file), FileVerdict::kOtherContent);
  file.size_bytes = 2;
  EXPECT_EQ(compare(file), FileVerdict::kLonger);
  file.size_bytes = 4;
  EXPECT_EQ(compare(file), FileVerdict::kShorter);
  file.mode = 0600;
  EXPECT_EQ(compare(file), FileVerdict::kOtherMode);
  file.type = "directory";
  EXPECT_EQ(compare(file), FileVerdict::kOtherType);
  file.path += "-not";
  EXPECT_EQ(compare(file), FileVerdict::kMissing);
  questions_.files = {abc("file")};
  const std::string answer = answer_preflight(make_request(questions_), context_, criu_).dump();
  EXPECT_EQ(answer.find("ba7816bf"), std::string::npos);
  EXPECT_EQ(answer.find(directory_), std::string::npos);
}

TEST_F(Preflight, ComparesTheModificationTimeOfAFileIfItsDigestIsUnknown) {
  FileFact file = abc("file");
  file.digest.clear();
  EXPECT_EQ(compare(file), FileVerdict::kUnchecked);
  struct stat found {};
  ASSERT_EQ(stat(file.path.c_str(), &found), 0);
  file.modified_ns = found.st_mtim.tv_sec * 1'000'000'000LL + found.st_mtim.tv_nsec;
  EXPECT_EQ(compare(file), FileVerdict::kSame);
}

TEST_F(Preflight, DoesNotReadLargeFiles) {
  FileFact file = abc("large");
  ASSERT_EQ(truncate(file.path.c_str(), (64 << 20) + 1), 0);
  file.size_bytes = (64 << 20) + 1;
  EXPECT_EQ(compare(file), FileVerdict::kUnchecked);
}

TEST_F(Preflight, LocalFileWithEqualIdsIsSharedOnlyIfBothNodesShareAKernel) {
  FileFact file = abc("file");
  struct stat found {};
  ASSERT_EQ(stat(file.path.c_str(), &found), 0);
  file.inode = found.st_ino;
  {
    const UniqueFd fd(open(file.path.c_str(), O_RDONLY));
    file.filesystem_id = filesystem_id_of(fd.get());
  }
  file.digest[0] = 'c';
  // A clone of this machine gives this answer.
  EXPECT_EQ(compare(file), FileVerdict::kOtherContent);
  questions_.boot_id = read_boot_id();
  EXPECT_EQ(compare(file), FileVerdict::kShared);
}

TEST_F(Preflight, DoesNotOpenNamedPipes) {
  const std::string path = directory_ + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(compare({.path = path, .type = "fifo"}), FileVerdict::kSame);
  EXPECT_EQ(compare({.path = path, .type = "file"}), FileVerdict::kOtherType);
}

TEST_F(Preflight, ListsTakenPids) {
  TestProcess process;
  const pid_t pid = process.pid();
  questions_.pids = {pid, 0x7ffffff0};
  EXPECT_THAT(ask().pids_taken, ElementsAre(pid));
  process.end();
  EXPECT_THAT(ask().pids_taken, IsEmpty());
}

// The leader of the session has ended, but another process of the session exists.
TEST_F(Preflight, PidOfASessionIsTaken) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  TestProcess leader([&] {
    setsid();
    const pid_t child = fork();
    if (child == 0) pause();
    if (write(ends[1], &child, sizeof(child)) != sizeof(child)) abort();
  });
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  const pid_t pid = leader.pid();
  leader.end();
  questions_.pids = {pid};
  EXPECT_THAT(ask().pids_taken, ElementsAre(pid));
  kill(child, SIGKILL);
}

TEST_F(Preflight, FindsFilesWhoseNamesAreNotUtf8) {
  EXPECT_EQ(compare(abc("caf\xe9")), FileVerdict::kSame);
  EXPECT_EQ(compare(abc("caf\xc3\xa9")), FileVerdict::kSame);
  FileFact missing = abc("caf\xe8");
  missing.path = directory_ + "/caf\xe7";
  EXPECT_EQ(compare(missing), FileVerdict::kMissing);
}

TEST_F(Preflight, ListsMissingAddressesAndTakenPorts) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const auto sockets = read_internet_sockets(getpid());
  ASSERT_TRUE(sockets.has_value());
  struct stat found {};
  fstat(listener.get(), &found);
  uint16_t port = 0;
  for (const InternetSocket& socket : *sockets) {
    if (socket.inode == found.st_ino) port = socket.local_port;
  }
  ASSERT_NE(port, 0);
  // The last address is from RFC 5737.
  questions_.addresses = {"127.0.0.1", "127.3.2.1", "192.0.2.77"};
  questions_.listeners = {{"tcp", "127.0.0.1", port}, {"udp", "127.0.0.1", port}};
  const PreflightAnswers answers = ask();
  EXPECT_THAT(answers.addresses_missing, ElementsAre("192.0.2.77"));
  ASSERT_EQ(answers.listeners_taken.size(), 1u);
  EXPECT_EQ(answers.listeners_taken[0].protocol, "tcp");
}

TEST_F(Preflight, SaysThatTheTargetIsDrained) { EXPECT_EQ(ask().drained_mount, "/in"); }

TEST_F(Preflight, DescribesTheTargetsImageStoreAndCriu) {
  const NodeFacts node = ask().node;
  EXPECT_EQ(node.store_free_bytes, 12345);
  EXPECT_EQ(node.criu_path, "/bin/false");
  EXPECT_NE(node.criu_problem, "");
}

TEST_F(Preflight, RefusesInvalidRequests) {
  const auto refusal = [&](const PreflightRequest& request) {
    const json answer = answer_preflight(request, context_, criu_);
    EXPECT_EQ(answer.at("ok"), false);
    return answer.at("error").get<std::string>();
  };
  PreflightRequest request = make_request(questions_);
  for (const json& questions : {json(), json::object(), json(7)}) {
    EXPECT_THAT(refusal({request.version, questions}), HasSubstr("cannot parse the request"));
  }
  EXPECT_THAT(refusal({99, request.questions}), HasSubstr("version 1, not 99"));
  request.questions["pids"] = "all";
  EXPECT_THAT(refusal(request), HasSubstr("cannot parse the request"));
  questions_.files = {{.path = "etc/shadow", .type = "file"}};
  EXPECT_THAT(refusal(make_request(questions_)), HasSubstr("not an absolute path"));
  questions_.files = {};
  questions_.pids.assign(100'001, 1);
  EXPECT_THAT(refusal(make_request(questions_)), HasSubstr("too many pids, files"));
}

TEST_F(Preflight, LeavesTheProcessorCheckToCriu) {
  questions_.processor = "1943565413404061";  // an image without entries
  CriuAnswers succeeds("/bin/true");
  EXPECT_EQ(ask(succeeds).processor_problem, "");
  CriuAnswers fails("/bin/cat");  // /bin/cat has no option -D
  EXPECT_NE(ask(fails).processor_problem, "");
  questions_.processor = "";
  EXPECT_EQ(ask().processor_problem, "");
}

TEST_F(Preflight, ReadsAnswersOfVersionsThatKnowFewerFacts) {
  json answer = answer_preflight(make_request(questions_), context_, criu_);
  ASSERT_EQ(answer["answers"]["node"].erase("rdma_abilities"), 1u);
  const auto read = read_answers(answer, questions_);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->node.host, gather_node_facts(criu_).host);
}

TEST_F(Preflight, RefusesAnswersThatDoNotMatchTheQuestions) {
  questions_.files = {abc("file")};
  json answer = answer_preflight(make_request(questions_), context_, criu_);
  json shorter = answer;
  shorter["answers"]["files"] = json::array();
  EXPECT_EQ(read_answers(shorter, questions_).error().errno_value, EPROTO);
  json unknown = answer;
  unknown["answers"]["files"] = {99};
  EXPECT_EQ(read_answers(unknown, questions_).error().errno_value, EPROTO);
  EXPECT_EQ(read_answers(json::array(), questions_).error().errno_value, EPROTO);
  EXPECT_THAT(read_answers({{"ok", false}, {"error", "no time"}}, questions_).error().message,
              HasSubstr("no time"));
}

}  // namespace
}  // namespace ppmr
