// Tests trees, and the objects that they share with other processes, on real processes.
#include "processes/process_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "base/unique_fd.h"
#include "processes/relations.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// Closes the standard streams, because the test runner shares them.
void close_inherited_streams() {
  const int null = open("/dev/null", O_RDWR);
  for (int fd : {0, 1, 2}) dup2(null, fd);
  close(null);
}

class Trees : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "process_tree_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Returns a process without inherited streams that has one child for each of `prepares`. Stores
  // the pids of the children in `pids`.
  std::unique_ptr<TestProcess> parent_of(
      std::vector<std::function<void()>> prepares, std::vector<pid_t>& pids,
      std::function<void()> prepare_parent = [] {}) {
    const std::string file = directory_ + "/pids";
    auto parent = std::make_unique<TestProcess>([&] {
      close_inherited_streams();
      prepare_parent();
      std::ofstream written(file);
      for (const auto& prepare : prepares) written << (new TestProcess(prepare))->pid() << "\n";
    });
    std::ifstream read(file);
    pids.clear();
    for (pid_t pid = 0; read >> pid;) pids.push_back(pid);
    return parent;
  }

  static std::vector<pid_t> pids_of(const ProcessTree& tree) {
    std::vector<pid_t> pids;
    for (const ProcessStat& process : tree.processes) pids.push_back(process.pid);
    return pids;
  }

  static TreeSelection select(const std::vector<pid_t>& pids, TreeOptions options = {}) {
    auto selection = select_trees(pids, options);
    EXPECT_TRUE(selection.has_value()) << selection.error().message;
    return selection ? *selection : TreeSelection{};
  }
  static std::vector<std::string> findings_of(pid_t pid, TreeOptions options = {}) {
    std::vector<std::string> texts;
    for (const Finding& finding : select({pid}, options).findings)
      texts.push_back(text_of(finding));
    return texts;
  }
  static std::string error_of(pid_t pid) {
    const auto selection = select_trees({pid}, {});
    return selection ? "" : selection.error().message;
  }

  std::string directory_;
};

TEST_F(Trees, TreeContainsAllDescendants) {
  std::vector<pid_t> workers;
  int shared[2];
  const auto share = [&] { ASSERT_EQ(pipe(shared), 0); };
  const auto daemon = parent_of({[] {}, [] {}}, workers, share);
  const TreeSelection selection = select({daemon->pid()});
  ASSERT_THAT(selection.trees, SizeIs(1));
  EXPECT_THAT(pids_of(selection.trees[0]), ElementsAre(daemon->pid(), workers[0], workers[1]));
  EXPECT_THAT(selection.findings, IsEmpty());
}

TEST_F(Trees, SelectedDescendantBelongsToTheTreeOfItsSelectedAncestor) {
  std::vector<pid_t> workers;
  const auto daemon = parent_of({[] {}, [] {}}, workers);
  const TreeSelection selection = select({workers[1], daemon->pid(), workers[0], workers[0]});
  ASSERT_THAT(selection.trees, SizeIs(1));
  EXPECT_EQ(selection.trees[0].root, daemon->pid());
}

TEST_F(Trees, SiblingsWithoutSharedObjectsAreSeparateTrees) {
  std::vector<pid_t> workers;
  const auto daemon = parent_of({[] {}, [] {}}, workers);
  const TreeSelection selection = select({workers[1], workers[0]});
  ASSERT_THAT(selection.trees, SizeIs(2));
  EXPECT_EQ(selection.trees[0].root, workers[1]);
  EXPECT_EQ(selection.trees[1].root, workers[0]);
  EXPECT_THAT(selection.findings, IsEmpty());
}

TEST_F(Trees, StagesOfAPipelineMoveOnlyWithTheirShell) {
  std::vector<pid_t> stages;
  int between[2];
  const auto shell = parent_of({[&] { close(between[0]); }, [&] { close(between[1]); }}, stages,
                               [&] { ASSERT_EQ(pipe(between), 0); });
  EXPECT_THAT(select({shell->pid()}).findings, IsEmpty());

  const TreeSelection selection = select({stages[0]});
  ASSERT_THAT(selection.findings, SizeIs(1));
  EXPECT_TRUE(stops(selection.findings));
  EXPECT_EQ(
      selection.findings[0].sentence,
      fmt::format("{0} ({3}) shares a pipe with {1} ({3}), {2} ({3}), which are not being moved",
                  stages[0], std::min(shell->pid(), stages[1]), std::max(shell->pid(), stages[1]),
                  "process_tree_te"));
  EXPECT_EQ(
      selection.findings[0].remedy,
      fmt::format("move {} (process_tree_te) with all of its descendants instead", shell->pid()));
}

TEST_F(Trees, PipeSharedByManyProcessesIsOneFindingThatNamesTheFirstFew) {
  std::vector<pid_t> workers;
  int shared[2];
  const std::vector<std::function<void()>> prepares(15, [] {});
  const auto parent = parent_of(prepares, workers, [&] { ASSERT_EQ(pipe(shared), 0); });
  ASSERT_THAT(workers, SizeIs(15));
  const auto findings = findings_of(workers[0]);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0], HasSubstr("shares a pipe with"));
  EXPECT_THAT(findings[0], HasSubstr(" and 7 more, which are not being moved"));
}

TEST_F(Trees, TwoPipesSharedByTheSameProcessesMakeOneFinding) {
  std::vector<pid_t> workers;
  int pipes[2][2], pair[2];
  const auto parent = parent_of({[] {}}, workers, [&] {
    ASSERT_EQ(pipe(pipes[0]), 0);
    ASSERT_EQ(pipe(pipes[1]), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  });
  EXPECT_THAT(findings_of(workers[0]),
              UnorderedElementsAre(HasSubstr("shares a pipe with"),
                                   HasSubstr("is connected over a Unix socket with")));
}

TEST_F(Trees, PipeBetweenTwoTreesIsReportedOnce) {
  std::vector<pid_t> stages;
  int between[2];
  const auto shell = parent_of({[] {}, [] {}}, stages, [&] { ASSERT_EQ(pipe(between), 0); });
  const TreeSelection selection = select(stages);
  ASSERT_THAT(selection.findings, SizeIs(1));
  EXPECT_THAT(
      selection.findings[0].sentence,
      AllOf(HasSubstr(fmt::format("with {} (process_tree_te), which is not", shell->pid())),
            HasSubstr(fmt::format("and with {} (process_tree_te), which would be moved separately",
                                  stages[1]))));
}

TEST_F(Trees, FindingAdvisesAStartWithoutSharedObjectsIfNoCommonAncestorCanMove) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // shared with this process, which cannot move itself
  const TestProcess child(close_inherited_streams);
  EXPECT_THAT(findings_of(child.pid()),
              ElementsAre(HasSubstr("no common ancestor that can be moved")));
  close(ends[0]), close(ends[1]);
}

TEST_F(Trees, ReportsSocketSharedWithAParentThatStays) {
  const UniqueFd socket_of_ours(socket(AF_INET, SOCK_STREAM, 0));
  const TestProcess child(close_inherited_streams);
  const auto findings = findings_of(child.pid());
  EXPECT_THAT(findings, Contains(HasSubstr("shares a socket with")));
}

TEST_F(Trees, ReportsUnixConnectionToAProcessThatStays) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd left(ends[0]), right(ends[1]);
  const TestProcess child([&] { close_inherited_streams(), left.reset(); });
  right.reset();
  for (bool external : {false, true}) {  // CRIU cannot restore one end of a stream
    const auto selection = select({child.pid()}, {.external_unix_sockets = external});
    EXPECT_TRUE(stops(selection.findings));
    EXPECT_THAT(
        selection.findings,
        ElementsAre(Field(&Finding::sentence, HasSubstr("is connected over a Unix socket with"))));
  }
}

TEST_F(Trees, ExternalUnixSocketOptionTurnsDatagramFindingIntoWarning) {
  const UniqueFd log(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ + "/log";
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(log.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const TestProcess child([&] {
    close_inherited_streams();
    close(log.get());
    const int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (connect(sender, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
  });
  const auto findings = findings_of(child.pid());
  EXPECT_THAT(findings, Contains(HasSubstr("sends to the Unix socket (" + path + ") of")));
  EXPECT_THAT(findings, Contains(HasSubstr("--ext-unix-sk")));
  const TreeSelection selection = select({child.pid()}, {.external_unix_sockets = true});
  ASSERT_THAT(selection.findings, SizeIs(1));
  EXPECT_EQ(selection.findings[0].severity, Severity::kWarns);
}

TEST_F(Trees, SocketPairWithinTreeIsNotReported) {
  std::vector<pid_t> children;
  int ends[2];
  const auto parent = parent_of({[&] { close(ends[0]); }, [&] { close(ends[1]); }}, children,
                                [&] { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); });
  EXPECT_THAT(select({parent->pid()}).findings, IsEmpty());
}

TEST_F(Trees, ReportsUnixConnectionInAnotherNetworkNamespace) {
  if (geteuid() != 0)
    GTEST_SKIP() << "NOT TESTED: sockets of another network namespace (needs root)";
  std::vector<pid_t> children;
  int ends[2];
  const auto parent = parent_of({[&] { close(ends[0]); }, [&] { close(ends[1]); }}, children, [&] {
    if (unshare(CLONE_NEWNET) != 0) _exit(1);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  });
  EXPECT_THAT(select({parent->pid()}).findings, IsEmpty());
  // The children have one end each, the parent has both: one object with three holders.
  const auto findings = findings_of(children[0]);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0], AllOf(HasSubstr("is connected over a Unix socket with"),
                                 HasSubstr(std::to_string(children[1]))));
}

TEST_F(Trees, ReportsMemorySharedWithAProcessThatStays) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const TestProcess child(close_inherited_streams);
  const auto findings = findings_of(child.pid());
  munmap(memory, 4096);
  EXPECT_THAT(findings, Contains(HasSubstr("shares memory with")));
  EXPECT_THAT(findings_of(child.pid()), IsEmpty());
}

TEST_F(Trees, ReportsSystemVMemorySharedWithAProcessThatStays) {
  const int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  void* memory = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  const TestProcess child(close_inherited_streams);
  const auto findings = findings_of(child.pid());
  shmdt(memory);
  EXPECT_THAT(findings, Contains(HasSubstr("shares System V memory with")));
}

TEST_F(Trees, ReportsEventfdSharedWithAProcessThatStays) {
  const UniqueFd event(eventfd(0, 0));
  const TestProcess child(close_inherited_streams);
  const TestProcess other([&] {
    close_inherited_streams();
    close(event.get());
    eventfd(0, 0);  // the child's own eventfd, which no other process has
  });
  const auto findings = findings_of(child.pid());
  EXPECT_THAT(findings, Contains(HasSubstr("shares an eventfd with")));
  EXPECT_THAT(findings_of(other.pid()), IsEmpty());
}

TEST_F(Trees, ReportsNamedPipeSharedWithAProcessThatStays) {
  const std::string path = directory_ + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const UniqueFd ours(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const TestProcess child([&] {
    close_inherited_streams();
    close(ours.get());
    if (open(path.c_str(), O_RDWR) < 0) _exit(1);
  });
  const auto findings = findings_of(child.pid());
  EXPECT_THAT(findings, Contains(HasSubstr("shares the named pipe " + path)));
}

TEST_F(Trees, RefusesProcessesThatCannotBeMoved) {
  EXPECT_THAT(error_of(0x7ffffff0), HasSubstr("there is no process"));
  EXPECT_THAT(error_of(getpid()), HasSubstr("its own descendant"));
  EXPECT_THAT(error_of(getppid()), HasSubstr("cannot be moved"));
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(dead), &info, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(error_of(dead), HasSubstr("has ended"));
  waitpid(dead, nullptr, 0);
}

TEST(ProcessTable, AncestorListEndsIfAParentIsMissingOrParentsFormALoop) {
  ProcessTable table;
  table[7] = {.pid = 7, .name = "a", .parent = 3};
  table[3] = {.pid = 3, .name = "loop", .parent = 7};  // a loop, as in an inconsistent snapshot
  EXPECT_LE(ancestors_of(table, 7).size(), table.size() + 1);
  table.erase(3);
  EXPECT_THAT(ancestors_of(table, 7), IsEmpty());
}

TEST(FindRelations, RootThatHasEndedIsAnError) {
  ProcessTable table;
  table[0x7ffffff0] = {.pid = 0x7ffffff0, .name = "worker"};
  const ProcessTree tree{.root = 0x7ffffff0, .processes = {{.pid = 0x7ffffff0, .name = "worker"}}};
  const auto relations = find_relations(table, {tree});
  ASSERT_FALSE(relations.has_value());
  EXPECT_EQ(relations.error().errno_value, ESRCH);
  EXPECT_THAT(relations.error().message, HasSubstr("(worker) ended during the check"));
}

TEST_F(Trees, IndependentTreesThatShareNothingAllMove) {
  std::vector<pid_t> workers;
  const auto daemon = parent_of({[] {}, [] {}, [] {}}, workers);
  const auto selection =
      select_independent_trees({workers[2], workers[0], workers[1], workers[0]}, {});
  ASSERT_TRUE(selection.has_value());
  std::vector<pid_t> roots;
  for (const ProcessTree& tree : selection->trees) roots.push_back(tree.root);
  EXPECT_THAT(roots, ElementsAre(workers[2], workers[0], workers[1]));
  EXPECT_THAT(selection->excluded, IsEmpty());
}

TEST_F(Trees, EachIndependentTreeThatSharesAnObjectIsExcluded) {
  std::vector<pid_t> workers;
  int shared[2];
  const auto open_pipe = [&] { ASSERT_EQ(pipe(shared), 0); };
  const auto close_pipe = [&] {
    close(shared[0]);
    close(shared[1]);
  };
  const auto daemon = parent_of({[] {}, close_pipe, [] {}}, workers, open_pipe);
  const auto selection = select_independent_trees(workers, {});
  ASSERT_TRUE(selection.has_value());
  ASSERT_THAT(selection->trees, SizeIs(1));
  EXPECT_EQ(selection->trees[0].root, workers[1]);
  ASSERT_THAT(selection->excluded, SizeIs(2));
  for (const size_t i : {0, 1}) {
    EXPECT_THAT(selection->excluded[i].name, HasSubstr(std::to_string(workers[2 * i])));
    ASSERT_THAT(selection->excluded[i].findings, SizeIs(1));
    EXPECT_THAT(selection->excluded[i].findings[0].sentence, HasSubstr("share"));
  }
}

TEST_F(Trees, EndedIndependentTreeDoesNotStopTheOthers) {
  std::vector<pid_t> workers;
  const auto daemon = parent_of({[] {}}, workers);
  pid_t ended = 0;
  {
    const TestProcess gone([] {});
    ended = gone.pid();
  }
  const auto selection = select_independent_trees({ended, workers[0]}, {});
  ASSERT_TRUE(selection.has_value());
  ASSERT_THAT(selection->trees, SizeIs(1));
  ASSERT_THAT(selection->excluded, SizeIs(1));
  EXPECT_THAT(selection->excluded[0].findings[0].sentence, HasSubstr("there is no process"));
  EXPECT_EQ(select_independent_trees({getpid()}, {}).error().errno_value, EINVAL);
}

}  // namespace
}  // namespace ppmr
