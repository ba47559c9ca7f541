// Trees and what ties them to others, on real processes.
#include "restart_loader/processes/process_tree.h"

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

#include "buffer_pool/unique_fd.h"
#include "restart_loader/processes/relations.h"
#include "restart_loader/processes/test_process.h"

namespace ppmr {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Whatever the test runner gave us for input and output is shared with it: not what we look for.
void let_go_of_everything_inherited() {
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

  // A process that has let go of our descriptors, starts as many children as there are in
  // `prepares`, and writes down their pids.
  std::unique_ptr<TestProcess> parent_of(
      std::vector<std::function<void()>> prepares, std::vector<pid_t>& pids,
      std::function<void()> prepare_parent = [] {}) {
    const std::string file = directory_ + "/pids";
    auto parent = std::make_unique<TestProcess>([&] {
      let_go_of_everything_inherited();
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
    for (const TreeProcess& process : tree.processes) pids.push_back(process.pid);
    return pids;
  }

  static TreeSelection select(const std::vector<pid_t>& pids, TreeOptions options = {}) {
    auto selection = select_trees(pids, options);
    EXPECT_TRUE(selection.has_value()) << selection.error().message;
    return selection ? *selection : TreeSelection{};
  }

  std::string directory_;
};

TEST_F(Trees, ADaemonMovesWithItsWorkers) {
  std::vector<pid_t> workers;
  int shared[2];
  const auto share = [&] { ASSERT_EQ(pipe(shared), 0); };
  const auto daemon = parent_of({[] {}, [] {}}, workers, share);
  const TreeSelection selection = select({daemon->pid()});
  ASSERT_THAT(selection.trees, SizeIs(1));
  EXPECT_THAT(pids_of(selection.trees[0]), ElementsAre(daemon->pid(), workers[0], workers[1]));
  EXPECT_THAT(selection.findings, IsEmpty());
}

TEST_F(Trees, APidBelowAnotherBelongsToItsTree) {
  std::vector<pid_t> workers;
  const auto daemon = parent_of({[] {}, [] {}}, workers);
  const TreeSelection selection = select({workers[1], daemon->pid(), workers[0], workers[0]});
  ASSERT_THAT(selection.trees, SizeIs(1));
  EXPECT_EQ(selection.trees[0].root, daemon->pid());
}

TEST_F(Trees, ProcessesThatShareNothingAreTreesOfTheirOwn) {
  std::vector<pid_t> workers;
  const auto daemon = parent_of({[] {}, [] {}}, workers);
  const TreeSelection selection = select({workers[1], workers[0]});
  ASSERT_THAT(selection.trees, SizeIs(2));
  EXPECT_EQ(selection.trees[0].root, workers[1]);
  EXPECT_EQ(selection.trees[1].root, workers[0]);
  EXPECT_THAT(selection.findings, IsEmpty());
}

TEST_F(Trees, APipelineMovesWithItsShellOnly) {
  std::vector<pid_t> stages;
  int between[2];
  const auto shell = parent_of({[&] { close(between[0]); }, [&] { close(between[1]); }}, stages,
                               [&] { ASSERT_EQ(pipe(between), 0); });
  EXPECT_THAT(select({shell->pid()}).findings, IsEmpty());

  const auto refused = choose_trees({stages[0]});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().errno_value, EBUSY);
  EXPECT_THAT(refused.error().message,
              HasSubstr(fmt::format("{} (process_tree_te) shares a pipe with {} (process_tree_te), "
                                    "which is not being moved: move {} (process_tree_te), which ",
                                    stages[0], stages[1], shell->pid())));
}

TEST_F(Trees, TwoTreesThatShareAPipeAreRefusedOnceForBoth) {
  std::vector<pid_t> stages;
  int between[2];
  const auto shell = parent_of({[] {}, [] {}}, stages, [&] { ASSERT_EQ(pipe(between), 0); });
  const TreeSelection selection = select(stages);
  std::vector<std::string> between_them;
  for (const Finding& finding : selection.findings) {
    if (finding.sentence.find("tree of its own") != std::string::npos)
      between_them.push_back(finding.sentence);
  }
  EXPECT_THAT(between_them, SizeIs(1));
}

TEST_F(Trees, WithoutAProcessAboveThatCouldMoveTheRemedyIsAnother) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // between us, who cannot be moved by ourselves, and the child
  const TestProcess child(let_go_of_everything_inherited);
  close(ends[0]), close(ends[1]);
  ASSERT_EQ(pipe(ends), 0);
  const TestProcess sharing(let_go_of_everything_inherited);
  const auto refused = choose_trees({sharing.pid()});
  close(ends[0]), close(ends[1]);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("no process that can be moved is above both"));
}

TEST_F(Trees, AnInheritedSocketIsShared) {
  const UniqueFd socket_of_ours(socket(AF_INET, SOCK_STREAM, 0));
  const TestProcess child(let_go_of_everything_inherited);
  const auto refused = choose_trees({child.pid()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("shares a socket with"));
}

TEST_F(Trees, ThePeerOfAUnixConnectionIsFound) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd left(ends[0]), right(ends[1]);
  const TestProcess child([&] { let_go_of_everything_inherited(), left.reset(); });
  right.reset();
  for (bool external : {false, true}) {  // CRIU cannot cut a stream, whatever it is given
    const auto refused = choose_trees({child.pid()}, {.external_unix_sockets = external});
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message, HasSubstr("is connected over a Unix socket with"));
  }
}

TEST_F(Trees, ADatagramSocketOfAnotherMayStayIfTheUserSaysSo) {
  const UniqueFd log(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ + "/log";
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(log.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const TestProcess child([&] {
    let_go_of_everything_inherited();
    close(log.get());
    const int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (connect(sender, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
  });
  const auto refused = choose_trees({child.pid()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("sends to the Unix socket (" + path + ") of"));
  EXPECT_THAT(refused.error().message, HasSubstr("--ext-unix-sk"));
  const TreeSelection selection = select({child.pid()}, {.external_unix_sockets = true});
  ASSERT_THAT(selection.findings, SizeIs(1));
  EXPECT_EQ(selection.findings[0].severity, Severity::kWarns);
}

TEST_F(Trees, ASocketPairWithinATreeTiesItToNobody) {
  std::vector<pid_t> children;
  int ends[2];
  const auto parent = parent_of({[&] { close(ends[0]); }, [&] { close(ends[1]); }}, children,
                                [&] { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); });
  EXPECT_THAT(select({parent->pid()}).findings, IsEmpty());
}

TEST_F(Trees, ConnectionsInAnotherNetworkNamespaceAreFoundThere) {
  if (geteuid() != 0)
    GTEST_SKIP() << "NOT TESTED: sockets of another network namespace; making one needs root";
  std::vector<pid_t> children;
  int ends[2];
  const auto parent = parent_of({[&] { close(ends[0]); }, [&] { close(ends[1]); }}, children, [&] {
    if (unshare(CLONE_NEWNET) != 0) _exit(1);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  });
  EXPECT_THAT(select({parent->pid()}).findings, IsEmpty());
  // The children have one end each, the parent has both.
  const TreeSelection selection = select({children[0]});
  ASSERT_THAT(selection.findings, SizeIs(3));
  EXPECT_THAT(selection.findings,
              testing::Contains(testing::Field(
                  &Finding::sentence, AllOf(HasSubstr("is connected over a Unix socket with"),
                                            HasSubstr(std::to_string(children[1]))))));
}

TEST_F(Trees, SharedMemoryIsFound) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const TestProcess child(let_go_of_everything_inherited);
  const auto refused = choose_trees({child.pid()});
  munmap(memory, 4096);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("shares memory with"));
  EXPECT_TRUE(choose_trees({child.pid()}).has_value());  // now that we have let go of it
}

TEST_F(Trees, SystemVMemoryIsFound) {
  const int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  void* memory = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  const TestProcess child(let_go_of_everything_inherited);
  const auto refused = choose_trees({child.pid()});
  shmdt(memory);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("shares System V memory with"));
}

TEST_F(Trees, AnEventfdIsFound) {
  const UniqueFd event(eventfd(0, 0));
  const TestProcess child(let_go_of_everything_inherited);
  const TestProcess other([&] {
    let_go_of_everything_inherited();
    close(event.get());
    eventfd(0, 0);  // its own
  });
  const auto refused = choose_trees({child.pid()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("shares an eventfd with"));
  EXPECT_TRUE(choose_trees({other.pid()}).has_value());
}

TEST_F(Trees, ANamedPipeIsFound) {
  const std::string path = directory_ + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const UniqueFd ours(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const TestProcess child([&] {
    let_go_of_everything_inherited();
    close(ours.get());
    if (open(path.c_str(), O_RDWR) < 0) _exit(1);
  });
  const auto refused = choose_trees({child.pid()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("shares the named pipe " + path));
}

TEST_F(Trees, WhatCannotBeMovedIsRefused) {
  EXPECT_THAT(choose_trees({0x7ffffff0}).error().message, HasSubstr("there is no process"));
  EXPECT_THAT(choose_trees({getpid()}).error().message, HasSubstr("below it"));
  EXPECT_THAT(choose_trees({getppid()}).error().errno_value, EINVAL);
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(dead), &info, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(choose_trees({dead}).error().message, HasSubstr("has ended"));
  waitpid(dead, nullptr, 0);
}

TEST(TreesInATable, AnAncestorThatIsNotListedEndsTheLine) {
  ProcessTable table;
  table[7] = {.pid = 7, .name = "a", .parent = 3};
  table[3] = {.pid = 3, .name = "loop", .parent = 7};  // as a torn reading could have it
  EXPECT_LE(ancestors_of(table, 7).size(), table.size() + 1);
  table.erase(3);
  EXPECT_THAT(ancestors_of(table, 7), IsEmpty());
}

TEST(TreesInATable, ARootThatEndsInTheMiddleIsAnError) {
  ProcessTable table;
  table[0x7ffffff0] = {.pid = 0x7ffffff0, .name = "worker"};
  const ProcessTree tree{.root = 0x7ffffff0, .processes = {{0x7ffffff0, 0, 0, "worker"}}};
  const auto relations = find_relations(table, {tree});
  ASSERT_FALSE(relations.has_value());
  EXPECT_EQ(relations.error().errno_value, ESRCH);
  EXPECT_THAT(relations.error().message, HasSubstr("(worker) ended while it was looked at"));
}

}  // namespace
}  // namespace ppmr
