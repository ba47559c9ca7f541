// Tests the facts about real processes and about this node.
#include "preflight/tree_facts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mqueue.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/unique_fd.h"
#include "preflight/file_digest.h"
#include "preflight/node_facts.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::Not;
using testing::SizeIs;

class Facts : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "tree_facts_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = std::filesystem::canonical(path);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write_file(const std::string& name, const std::string& content) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << content;
    return path;
  }
  static TreeFacts facts_of(pid_t pid) {
    const auto table = read_process_table();
    EXPECT_TRUE(table.has_value());
    const auto trees = find_trees(*table, {pid});
    EXPECT_TRUE(trees.has_value()) << trees.error().message;
    const auto facts = gather_tree_facts(trees->at(0));
    EXPECT_TRUE(facts.has_value()) << facts.error().message;
    return facts.value_or(TreeFacts{});
  }
  static FileFact file_of(const TreeFacts& facts, const std::string& path) {
    const auto found = std::find_if(facts.files.begin(), facts.files.end(),
                                    [&](const FileFact& file) { return file.path == path; });
    EXPECT_NE(found, facts.files.end()) << path;
    return found == facts.files.end() ? FileFact{} : *found;
  }

  std::string directory_;
};

TEST_F(Facts, ContainProgramAndDirectories) {
  const TestProcess process([&] { (void)!chdir(directory_.c_str()); });
  const TreeFacts facts = facts_of(process.pid());
  ASSERT_THAT(facts.processes, SizeIs(1));
  const ProcessFact& fact = facts.processes[0];
  EXPECT_EQ(fact.working_directory, directory_);
  EXPECT_EQ(fact.root_directory, "/");
  EXPECT_EQ(fact.uid, geteuid());
  EXPECT_THAT(fact.threads, ElementsAre(process.pid()));
  EXPECT_FALSE(fact.hard_limits.empty());
  EXPECT_GT(facts.memory_bytes, 0u);
  EXPECT_EQ(file_of(facts, directory_).type, "directory");
  const auto executable = read_process_link(process.pid(), "exe");
  ASSERT_TRUE(executable);
  const FileFact program = file_of(facts, *executable);
  EXPECT_TRUE(program.mapped);
  EXPECT_FALSE(program.writable);
  EXPECT_EQ(program.size_bytes, std::filesystem::file_size(*executable));
  EXPECT_THAT(program.digest, SizeIs(64));
  // Libc has a build ID, even if this program has none.
  EXPECT_THAT(facts.files, Contains(Field(&FileFact::build_id, Not(""))));
}

TEST_F(Facts, DistinguishReadWrittenAppendedDeletedAndMappedFiles) {
  const std::string read = write_file("read", "abc"), written = write_file("written", "x");
  const std::string appended = write_file("appended", ""), gone = write_file("gone", "12345");
  const std::string mapped = write_file("mapped", std::string(4096, 'm'));
  const TestProcess process([&] {
    open(read.c_str(), O_RDONLY);
    open(written.c_str(), O_RDWR);
    open(appended.c_str(), O_WRONLY | O_APPEND);
    open(gone.c_str(), O_RDONLY);
    unlink(gone.c_str());
    const int fd = open(mapped.c_str(), O_RDWR);
    mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
  });
  const TreeFacts facts = facts_of(process.pid());
  // The digest is the output of `echo -n abc | sha256sum`.
  EXPECT_EQ(file_of(facts, read).digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_FALSE(file_of(facts, read).writable);
  EXPECT_TRUE(file_of(facts, written).writable);
  EXPECT_EQ(file_of(facts, written).digest, "");
  EXPECT_FALSE(file_of(facts, written).append_only);
  EXPECT_TRUE(file_of(facts, appended).append_only);
  EXPECT_TRUE(file_of(facts, gone).deleted);
  EXPECT_EQ(file_of(facts, gone).size_bytes, 5u);
  EXPECT_EQ(file_of(facts, gone).links, 0u);
  EXPECT_TRUE(file_of(facts, mapped).mapped && file_of(facts, mapped).writable);
  EXPECT_TRUE(file_of(facts, mapped).mapped_for_writing);
  EXPECT_FALSE(file_of(facts, written).mapped_for_writing);
}

// A process may still have a library mapped that the upgrade of a package has deleted. CRIU carries
// the whole file.
TEST_F(Facts, DeletedLibraryHasTheSizeOfItsFile) {
  const std::string library = write_file("library", std::string(3 << 20, 'l'));
  const TestProcess process([&] {
    const int fd = open(library.c_str(), O_RDONLY);
    mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    unlink(library.c_str());
  });
  const TreeFacts facts = facts_of(process.pid());
  EXPECT_TRUE(file_of(facts, library).deleted);
  EXPECT_EQ(file_of(facts, library).size_bytes, uint64_t{3} << 20);
}

TEST_F(Facts, FileWhoseNameEndsAsThatOfADeletedOneIsNotDeleted) {
  const std::string opened = write_file("opened (deleted)", "x");
  const std::string mapped = write_file("mapped (deleted)", "x");
  const TestProcess process([&] {
    open(opened.c_str(), O_RDONLY);
    const int fd = open(mapped.c_str(), O_RDONLY);
    mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
  });
  const TreeFacts facts = facts_of(process.pid());
  EXPECT_FALSE(file_of(facts, opened).deleted);
  EXPECT_FALSE(file_of(facts, mapped).deleted);
}

TEST_F(Facts, ContainSemaphoresOfTheNode) {
  const int semaphores = semget(IPC_PRIVATE, 1, 0600);
  ASSERT_GE(semaphores, 0);
  const TestProcess process([&] {
    sembuf raise{.sem_num = 0, .sem_op = 1, .sem_flg = 0};
    if (semop(semaphores, &raise, 1) != 0) abort();
  });
  const TreeFacts facts = facts_of(process.pid());
  semctl(semaphores, 0, IPC_RMID);
  EXPECT_TRUE(std::any_of(facts.peculiarities.begin(), facts.peculiarities.end(),
                          [&](const Peculiarity& item) {
                            return item.kind == "system v object" &&
                                   item.object == "semaphore set " + std::to_string(semaphores);
                          }));
}

TEST_F(Facts, ContainAProcessWithTheMemoryOfItsParent) {
  const TestProcess process([] {
    static std::array<char, 64 << 10> stack;
    const auto wait = [](void*) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
      return 0;
    };
    if (clone(wait, stack.data() + stack.size(), CLONE_VM | SIGCHLD, nullptr) < 0) abort();
  });
  EXPECT_THAT(facts_of(process.pid()).peculiarities,
              Contains(testing::AllOf(Field(&Peculiarity::kind, "common memory"),
                                      Field(&Peculiarity::object, std::to_string(process.pid())))));
}

// A process in vfork(2) waits for its child, which has the same memory, and does not stop
// meanwhile.
TEST_F(Facts, ReportThatAProcessInVforkWasNotAsked) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int begun = ends[1];
    if (vfork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      (void)!write(begun, "", 1);
      for (;;) pause();
    }
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  TreeFacts facts = facts_of(pid);
  EXPECT_THAT(facts.peculiarities, Not(Contains(Field(&Peculiarity::kind, "common memory"))));
  find_restrictions(facts);
  EXPECT_FALSE(facts.processes.front().was_asked);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Facts, ContainAMessageQueue) {
  const std::string name = fmt::format("/ppmr-test-{}", getpid());
  const mqd_t queue = mq_open(name.c_str(), O_CREAT | O_RDWR, 0600, nullptr);
  if (queue < 0) GTEST_SKIP() << "NOT TESTED: the kernel has no message queues";
  mq_unlink(name.c_str());
  const TestProcess process;
  mq_close(queue);
  EXPECT_THAT(facts_of(process.pid()).peculiarities,
              Contains(Field(&Peculiarity::kind, "message queue")));
}

TEST_F(Facts, ContainRestrictionsOfEachThread) {
  const TestProcess process([] {
    std::promise<void> is_set;
    std::thread([&is_set] {
      if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) abort();
      is_set.set_value();
      for (;;) pause();
    }).detach();
    is_set.get_future().wait();
  });
  TreeFacts facts = facts_of(process.pid());
  ASSERT_THAT(facts.processes, SizeIs(1));
  find_restrictions(facts);
  EXPECT_TRUE(facts.processes[0].faults_on_cpu_queries);
  EXPECT_FALSE(facts.processes[0].has_segments);
}

// Threads that end meanwhile do not count as threads that could not be asked.
TEST_F(Facts, DoNotDependOnThreadsThatComeAndGo) {
  const TestProcess process([] {
    for (int i = 0; i < 4; ++i) {
      std::thread([] {
        for (;;) std::thread([] { usleep(200); }).join();
      }).detach();
    }
  });
  for (int look = 0; look < 10; ++look) {
    TreeFacts facts = facts_of(process.pid());
    ASSERT_THAT(facts.processes, SizeIs(1));
    find_restrictions(facts);
    ASSERT_FALSE(facts.processes[0].landlock_is_unknown) << "look " << look;
  }
}

TEST_F(Facts, ContainLocksInotifyTerminalsAndDevices) {
  const std::string locked = write_file("locked", "");
  const TestProcess process([&] {
    flock(open(locked.c_str(), O_RDWR), LOCK_EX);
    inotify_init();
    socket(AF_ALG, SOCK_SEQPACKET, 0);
    open("/dev/ptmx", O_RDWR | O_NOCTTY);
    open("/dev/fuse", O_RDWR);
    open("/dev/null", O_RDWR);
  });
  const TreeFacts facts = facts_of(process.pid());
  std::vector<std::pair<std::string, std::string>> found;
  for (const Peculiarity& item : facts.peculiarities) found.emplace_back(item.kind, item.object);
  EXPECT_THAT(found, Contains(std::pair<std::string, std::string>("lock", locked)));
  EXPECT_THAT(found, Contains(std::pair<std::string, std::string>("inotify", "inotify")));
  if (access("/dev/fuse", R_OK | W_OK) == 0) {
    EXPECT_THAT(found, Contains(std::pair<std::string, std::string>("device", "/dev/fuse")));
  }
  EXPECT_THAT(found, Contains(testing::Pair("terminal", testing::EndsWith("ptmx"))));
  EXPECT_THAT(found, Not(Contains(testing::Pair("device", "/dev/null"))));
}

TEST_F(Facts, ContainAPidfdOfAProcessOutside) {
  const pid_t here = getpid();
  const TestProcess process([here] {
    syscall(SYS_pidfd_open, here, 0);
    syscall(SYS_pidfd_open, getpid(), 0);
  });
  std::vector<std::string> found;
  for (const Peculiarity& item : facts_of(process.pid()).peculiarities) {
    if (item.kind == "foreign process") found.push_back(item.object);
  }
  EXPECT_THAT(found, testing::ElementsAre(std::to_string(here)));
}

TEST_F(Facts, ContainWhichLocksExcludeOthers) {
  const std::string mine = write_file("mine", ""), ours = write_file("ours", "");
  const std::string own = write_file("own", ""), leased = write_file("leased", "");
  const TestProcess process([&] {
    flock(open(mine.c_str(), O_RDONLY), LOCK_EX);
    flock(open(ours.c_str(), O_RDWR), LOCK_SH);
    (void)lockf(open(own.c_str(), O_RDWR), F_LOCK, 0);
    if (fcntl(open(leased.c_str(), O_RDWR), F_SETLEASE, F_WRLCK) != 0) _exit(1);
  });
  const TreeFacts facts = facts_of(process.pid());
  EXPECT_TRUE(file_of(facts, mine).lock_excludes);
  EXPECT_FALSE(file_of(facts, mine).lock_is_of_process);
  EXPECT_FALSE(file_of(facts, ours).lock_excludes);
  EXPECT_TRUE(file_of(facts, own).lock_excludes && file_of(facts, own).lock_is_of_process);
  EXPECT_TRUE(file_of(facts, leased).lock_excludes && file_of(facts, leased).lock_is_lease);
  EXPECT_FALSE(file_of(facts, own).lock_is_lease || file_of(facts, leased).lock_is_of_process);
}

TEST_F(Facts, ContainTheCriuExternalNameOfAFileFromAnotherMountNamespace) {
  const std::string before = write_file("before", ""), after = write_file("after", "");
  const TestProcess process([&] {
    open(before.c_str(), O_RDONLY);
    const int directory = open(directory_.c_str(), O_RDONLY | O_DIRECTORY);
    if (unshare(CLONE_NEWNS) != 0) _exit(1);
    open(after.c_str(), O_RDONLY);
    if (fchdir(directory) != 0) _exit(1);
    close(directory);
    for (const int inherited : {0, 1, 2}) close(inherited);
  });
  std::vector<std::string> foreign;
  for (const Peculiarity& item : facts_of(process.pid()).peculiarities) {
    if (item.kind != "foreign mount") continue;
    foreign.push_back(item.object);
    struct stat found {};
    ASSERT_EQ(stat(item.object.c_str(), &found), 0);
    EXPECT_THAT(item.external, testing::MatchesRegex("file\\[[0-9a-f]+:[0-9a-f]+\\]"));
    EXPECT_THAT(item.external, testing::EndsWith(fmt::format(":{:x}]", found.st_ino)));
  }
  EXPECT_THAT(foreign, testing::UnorderedElementsAre(before, directory_));
}

// bash replaces a descriptor in this way for `read line <FILE` in the last program of a pipeline.
TEST_F(Facts, OmitADescriptorThatIsReplacedMeanwhile) {
  const std::string brief = write_file("brief", "");
  const TestProcess process([&] {
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    const int replaced = dup(ends[0]);
    raise(SIGSTOP);
    for (;;) {
      const int fd = open(brief.c_str(), O_RDONLY);
      dup2(fd, replaced);
      close(fd);
      dup2(ends[0], replaced);
    }
  });
  for (int round = 0; round < 60; ++round) {
    for (const Peculiarity& item : facts_of(process.pid()).peculiarities)
      ASSERT_NE(item.kind, "foreign mount") << item.object;
  }
}

// Creates a System V segment whose ID is the inode number of other shared memory, or one higher.
void share_memory_twice(const std::function<uint64_t()>& inode_of_other, bool same_number) {
  if (unshare(CLONE_NEWIPC) != 0) _exit(1);
  std::ofstream("/proc/sys/kernel/shm_next_id") << inode_of_other() + (same_number ? 0 : 1);
  if (shmget(IPC_PRIVATE, 4096, 0600) < 0) _exit(1);
}

uint64_t inode_of_shared_mapping() {
  mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const auto mappings = read_mappings(getpid());
  for (const Mapping& mapping : *mappings) {
    if (mapping.shared && mapping.path == "/dev/zero") return mapping.inode;
  }
  _exit(1);
}

uint64_t inode_of_memfd() {
  struct stat found {};
  if (fstat(memfd_create("test", 0), &found) != 0) _exit(1);
  return found.st_ino;
}

TEST_F(Facts, ReportSharedMemoryWhoseInodeEqualsTheIdOfASystemVSegment) {
  if (geteuid() != 0)
    GTEST_SKIP()
        << "NOT TESTED: shared memory with equal numbers (needs root for an IPC namespace)";
  for (const auto& inode_of_other : {inode_of_shared_mapping, inode_of_memfd}) {
    for (const bool same_number : {false, true}) {
      const TestProcess process([&] { share_memory_twice(inode_of_other, same_number); });
      int found = 0;
      for (const Peculiarity& item : facts_of(process.pid()).peculiarities)
        found += item.kind == "ambiguous shared memory" ? 1 : 0;
      EXPECT_EQ(found, same_number ? 1 : 0);
    }
  }
}

TEST_F(Facts, OmitSocketsOfOtherProcesses) {
  const int ours = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(listen(ours, 1), 0);  // on any free port
  const TestProcess process([&] {
    close(ours);
    listen(socket(AF_INET, SOCK_STREAM, 0), 1);
  });
  const TreeFacts facts = facts_of(process.pid());
  close(ours);
  int listeners = 0;
  for (const InternetSocket& socket : facts.sockets) listeners += socket.listens() ? 1 : 0;
  EXPECT_EQ(listeners, 1);
}

TEST_F(Facts, EndedTreeIsAnError) {
  TestProcess process;
  const auto table = read_process_table();
  const auto trees = find_trees(*table, {process.pid()});
  ASSERT_TRUE(trees.has_value());
  process.end();
  const auto facts = gather_tree_facts(trees->at(0));
  ASSERT_FALSE(facts.has_value());
  EXPECT_EQ(facts.error().errno_value, ESRCH);
}

TEST(NodeFacts, RoundTripThroughJson) {
  CriuAnswers criu("");
  const nlohmann::json node = gather_node_facts(criu);
  EXPECT_EQ(nlohmann::json(nlohmann::json::parse(node.dump()).get<NodeFacts>()), node);
}

TEST(NodeFacts, DescribeThisNode) {
  CriuAnswers criu("");
  const NodeFacts facts = gather_node_facts(criu);
  EXPECT_FALSE(facts.kernel.empty());
  EXPECT_FALSE(facts.architecture.empty());
  EXPECT_FALSE(facts.cpu_features.empty());
  EXPECT_GT(facts.memory_available_bytes, 0u);
  EXPECT_EQ(facts.user, geteuid());
  EXPECT_TRUE(facts.criu_version.empty());
}

TEST(NodeFacts, CpuFeaturesAreInstructionSetsOnly) {
  EXPECT_THAT(parse_cpu_features("model name\t: x\nflags\t\t: fpu sse2 constant_tsc avx512f "
                                 "nopl\nbugs\t\t: spectre_v1\nflags\t\t: other\n"),
              ElementsAre("avx512f", "fpu", "sse2"));
  EXPECT_THAT(parse_cpu_features("Features\t: fp asimd\n"), ElementsAre("asimd", "fp"));
}

TEST(NodeFacts, ParseHardLimits) {
  const auto limits = parse_hard_limits(
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max open files            1024                 1048576              files     \n"
      "Max cpu time              unlimited            unlimited            seconds   \n");
  EXPECT_EQ(limits.at("Max open files"), "1048576");
  EXPECT_EQ(limits.at("Max cpu time"), "unlimited");
}

TEST(BuildId, MatchesReadelf) {
  const UniqueFd program(open("/bin/ls", O_RDONLY)), text(open("/etc/passwd", O_RDONLY));
  const std::unique_ptr<FILE, int (*)(FILE*)> readelf(
      popen("readelf -n /bin/ls 2>/dev/null | sed -n 's/.*Build ID: //p'", "r"), pclose);
  char shown[200] = "";
  ASSERT_NE(fgets(shown, sizeof(shown), readelf.get()), nullptr) << "no readelf?";
  EXPECT_EQ(build_id_of(program.get()) + "\n", shown);
  EXPECT_EQ(build_id_of(text.get()), "");
}

}  // namespace
}  // namespace ppmr
