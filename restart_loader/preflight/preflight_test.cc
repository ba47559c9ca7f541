// What follows from facts: one sentence each, on made-up nodes and processes.
#include "restart_loader/preflight/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

NodeFacts good_node(const std::string& host) {
  return {.host = host,
          .architecture = "x86_64",
          .kernel = "6.1.0-18-amd64",
          .criu_path = "/usr/sbin/criu",
          .criu_version = "4.2.1",
          .features = {kMemoryTrackingFeature, kLazyFeature},
          .cpu_features = {"avx2", "sse2"},
          .memory_available_bytes = 8ULL << 30,
          .user = 0,
          .capabilities = ~0ULL,
          .hard_limits = {{"Max open files", "1024"}}};
}

// Process 412 (worker), a session of its own, one program, nothing unusual.
TreeFacts plain_tree() {
  TreeFacts tree;
  tree.root = 412;
  tree.name = "worker";
  tree.processes = {{.pid = 412,
                     .name = "worker",
                     .threads = {412, 413},
                     .namespace_pids = {412},
                     .parent = 1,
                     .group = 412,
                     .session = 412,
                     .executable = "/opt/worker",
                     .working_directory = "/home/w",
                     .root_directory = "/",
                     .hard_limits = {{"Max open files", "1024"}}}};
  tree.files = {
      {.path = "/opt/worker", .type = "file", .size_bytes = 9, .mapped = true, .pid = 412},
      {.path = "/home/w", .type = "directory", .pid = 412}};
  tree.memory_bytes = 1 << 30;
  return tree;
}

class Obstacles : public testing::Test {
 protected:
  // Everything as it should be; each test spoils one thing.
  NodeFacts source_ = good_node("left"), target_ = good_node("right");
  TreeFacts tree_ = plain_tree();
  MoveOptions options_;
  std::map<std::string, FileVerdict> verdicts_;
  PreflightAnswers answers_;

  std::vector<Finding> find() {
    const PreflightQuestions questions = questions_about({tree_}, options_);
    PreflightAnswers answers = answers_;
    answers.node = target_;
    for (const FileFact& file : questions.files) {
      const auto verdict = verdicts_.find(file.path);
      answers.files.push_back(verdict == verdicts_.end() ? FileVerdict::kSame : verdict->second);
    }
    return find_obstacles(options_, source_, {tree_}, questions, answers);
  }
  void expect(Severity severity, const std::string& sentence, const std::string& remedy) {
    const std::vector<Finding> found = find();
    ASSERT_EQ(found.size(), 1u) << (found.empty()
                                        ? "nothing"
                                        : text_of(found[0]) + "\n" + text_of(found.back()));
    EXPECT_EQ(found[0].severity, severity);
    EXPECT_THAT(found[0].sentence, HasSubstr(sentence));
    EXPECT_THAT(found[0].remedy, HasSubstr(remedy));
  }
  void expect_stop(const std::string& sentence, const std::string& remedy) {
    expect(Severity::kStops, sentence, remedy);
  }
  void expect_warning(const std::string& sentence, const std::string& remedy) {
    expect(Severity::kWarns, sentence, remedy);
  }
  void add(const std::string& kind, const std::string& object) {
    tree_.peculiarities.push_back({kind, object, 412});
  }
  FileFact& add_file(const std::string& path) {
    tree_.files.push_back(
        {.path = path, .type = "file", .size_bytes = 5, .mode = 0644, .pid = 412});
    return tree_.files.back();
  }
};

TEST_F(Obstacles, APlainProcessHasNone) { EXPECT_THAT(find(), IsEmpty()); }

// --- nodes ---

TEST_F(Obstacles, NoCriu) {
  target_.criu_path.clear();
  target_.criu_version.clear();
  expect_stop("there is no CRIU on the target (right)", "third_party/install");
}
TEST_F(Obstacles, NoCriuHere) {
  source_.criu_path.clear();
  source_.criu_version.clear();
  expect_stop("there is no CRIU on the source (left)", "third_party/install");
}
TEST_F(Obstacles, ACriuThatDoesNotWork) {
  target_.criu_problem = "\"no vDSO\"";
  expect_stop("CRIU does not work on the target (right), says /usr/sbin/criu check: \"no vDSO\"",
              "third_party/install");
}
TEST_F(Obstacles, AnotherMajorVersionOfCriu) {
  target_.criu_version = "3.17.1";
  expect_stop("CRIU is 4.2.1 here and 3.17.1 at the target", "install the same");
}
TEST_F(Obstacles, AnOlderCriuOfTheSameMajor) {
  target_.criu_version = "4.1";
  expect_warning("CRIU is 4.2.1 here and 4.1 at the target", "older");
}
TEST_F(Obstacles, ANewerCriuOfTheSameMajorIsFine) {
  target_.criu_version = "4.10";
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, NotRoot) {
  target_.user = 1000;
  target_.capabilities = 1 << 24;  // CAP_SYS_RESOURCE alone
  expect_stop("run by user 1000 on the target", "as root");
}
TEST_F(Obstacles, AnotherArchitecture) {
  target_.architecture = "aarch64";
  target_.cpu_features = {"asimd"};
  expect_stop("x86_64, that of the target aarch64", "same architecture");
}
TEST_F(Obstacles, AProcessorThatLacksInstructions) {
  target_.cpu_features = {"sse2"};
  expect_stop("lacks instructions that programs may be using: avx2", "same kind or newer");
}
TEST_F(Obstacles, AProcessorThatHasMoreIsFine) {
  target_.cpu_features = {"avx2", "avx512f", "sse2"};
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, AnOlderKernel) {
  target_.kernel = "5.10.0";
  expect_warning("kernel (5.10.0) is older", "");
}
TEST_F(Obstacles, NoLazyRestart) {
  target_.features = {};
  expect_warning("cannot restart lazily", "frozen until");
  options_.lazily = false;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, NoMemoryTracking) {
  source_.features = {};
  EXPECT_THAT(find(), IsEmpty());
  options_.pre_copy = true;
  expect_stop("--pre-copy needs a kernel", "move without --pre-copy");
}
TEST_F(Obstacles, NoRoomInTheImageStore) {
  target_.store_free_bytes = 1 << 29;
  expect_stop(
      "1.0 GiB of memory are to be moved, but the target's image store has room for 512.0 "
      "MiB",
      "--spill-dir");
}
TEST_F(Obstacles, NoMemoryAtTheTarget) {
  target_.memory_available_bytes = 1 << 29;
  expect_stop("the target has 512.0 MiB free", "free memory");
}
TEST_F(Obstacles, LittleMemoryAtTheTarget) {
  target_.memory_available_bytes = (1 << 30) + (1 << 29);
  expect_warning("the target has 1.5 GiB free", "held twice");
}

// --- processes ---

TEST_F(Obstacles, OtherUsersProcessesWithoutTheCapability) {
  tree_.processes[0].uid = 1000;
  source_.capabilities &= ~(1ULL << 24);
  expect_stop("412 (worker) runs as user 1000, and CRIU lacks CAP_SYS_RESOURCE on the source",
              "capability");
}
TEST_F(Obstacles, LimitsThatTheTargetMayNotSet) {
  target_.capabilities &= ~(1ULL << 24);
  EXPECT_THAT(find(), IsEmpty());
  tree_.processes[0].hard_limits["Max open files"] = "unlimited";
  tree_.processes.push_back(tree_.processes[0]);  // told once for all of a tree
  tree_.processes[1].pid = 414;
  expect_warning("412 (worker) has the hard limit 'Max open files' of unlimited", "lower one");
}
TEST_F(Obstacles, ADebugger) {
  tree_.processes[0].tracer = 77;
  expect_stop("412 (worker) is being traced by process 77", "detach");
}
TEST_F(Obstacles, ASeccompFilter) {
  tree_.processes[0].seccomp_mode = 2;
  expect_warning("412 (worker) has a seccomp filter", "CONFIG_SECCOMP_FILTER");
}
TEST_F(Obstacles, ASessionOfOthers) {
  tree_.processes[0].session = 300;
  expect_stop("412 (worker) belongs to the session of process 300", "--shell-job");
  options_.shell_job = true;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, ATerminal) {
  add("terminal", "/dev/pts/3");
  expect_stop("412 (worker) uses the terminal /dev/pts/3", "screen or tmux");
  add("terminal", "/dev/ptmx");  // now it brings the terminal along
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, TheMiddleOfAPidNamespace) {
  tree_.own_namespaces = {"pid"};
  tree_.processes[0].namespace_pids = {412, 7};
  expect_stop("lives in a pid namespace", "first process of that namespace");
  tree_.processes[0].namespace_pids = {412, 1};
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, MountsOfItsOwnAreNotCompared) {
  tree_.own_namespaces = {"mnt"};
  EXPECT_THAT(questions_about({tree_}, options_).files, IsEmpty());
  expect_warning("has a mount namespace of its own", "not compared");
}
TEST_F(Obstacles, ANetworkOfItsOwnIsNotCompared) {
  tree_.own_namespaces = {"net"};
  tree_.sockets = {{.protocol = "tcp", .local_address = "10.0.0.1", .local_port = 80, .state = 10}};
  EXPECT_THAT(questions_about({tree_}, options_).addresses, IsEmpty());
  expect_warning("has a network namespace of its own", "not compared");
}
TEST_F(Obstacles, TakenPids) {
  answers_.pids_taken = {412};
  expect_stop("the pids 412 are taken at the target", "pid namespace of its own");
}
TEST_F(Obstacles, PidsAreAskedWithThreads) {
  EXPECT_THAT(questions_about({tree_}, options_).pids, testing::ElementsAre(412, 413));
  options_.own_pid_namespace = true;
  EXPECT_THAT(questions_about({tree_}, options_).pids, IsEmpty());
}

// --- what processes have ---

TEST_F(Obstacles, ADevice) {
  add("device", "/dev/nvidia0");
  expect_stop("412 (worker) has the device /dev/nvidia0 open", "close");
}
TEST_F(Obstacles, ALock) {
  add("lock", "/var/db");
  expect_stop("412 (worker) holds a lock on /var/db", "--file-locks");
  options_.file_locks = true;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, Inotify) {
  add("inotify", "inotify");
  expect_warning("412 (worker) watches files", "--force-irmap");
}
TEST_F(Obstacles, AnUnusualSocket) {
  add("socket", "SCTP");
  expect_stop("a kind that CRIU cannot move (SCTP)", "close");
}
TEST_F(Obstacles, IoUring) {
  add("anonymous file", "[io_uring]");
  expect_stop("412 (worker) uses [io_uring]", "without io_uring");
}
TEST_F(Obstacles, SystemVMemory) {
  add("system v memory", "/SYSV00000000");
  expect_stop("uses System V shared memory", "unshare --ipc");
  tree_.own_namespaces = {"ipc"};
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, SharedMemoryThatCriuWouldMixUp) {
  add("ambiguous shared memory", "2");
  expect_stop("has shared memory with the number of its System V segment 2", "start it again");
}
TEST_F(Obstacles, AFileInAMountOfPpmr) {
  add("ppmr mount", "/mnt/out/x");
  expect_stop("has /mnt/out/x open, in a mount of ppmr's", "close");
}
TEST_F(Obstacles, AFileFromAnotherMountNamespace) {
  add("foreign mount", "/dev/null");
  expect_stop("has /dev/null open from another mount namespace", "inside of its own");
  options_.read({"--external", "file[5:23]"});
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, ALargeDeletedFile) {
  FileFact& file = add_file("/tmp/scratch");
  file.deleted = true;
  EXPECT_THAT(find(), IsEmpty());
  file.size_bytes = 5 << 20;
  expect_stop("uses /tmp/scratch (5.0 MiB), which was deleted", "--ghost-limit 6M");
  options_.read({"--ghost-limit", "6M"});
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, ADeletedNameOfAFileThatHasAnother) {
  FileFact& file = add_file("/tmp/scratch");
  file.deleted = true;
  file.links = 1;
  expect_stop("was deleted but has another name", "--link-remap");
  options_.link_remap = true;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, Connections) {
  tree_.sockets = {{.protocol = "tcp",
                    .local_address = "10.0.0.1",
                    .local_port = 6379,
                    .remote_address = "10.0.0.9",
                    .remote_port = 40000,
                    .state = 1}};
  expect_stop("412 (worker) has TCP connections (10.0.0.1:6379 with 10.0.0.9:40000)",
              "--tcp-established");
  options_.tcp_established = true;
  EXPECT_THAT(find(), IsEmpty());
  answers_.addresses_missing = {"10.0.0.1"};
  expect_stop("the addresses 10.0.0.1 are not at the target", "ip address add");
}
TEST_F(Obstacles, ATakenPort) {
  answers_.listeners_taken = {{"tcp", "0.0.0.0", 80}};
  expect_stop("somebody at the target uses tcp port 80", "end that");
}

// --- files ---

TEST_F(Obstacles, AProgramThatIsMissing) {
  verdicts_["/opt/worker"] = FileVerdict::kMissing;
  expect_stop("/opt/worker, which 412 (worker) runs or has mapped, is not at the target",
              "install it there in the same version");
}
TEST_F(Obstacles, AProgramOfAnotherVersion) {
  verdicts_["/opt/worker"] = FileVerdict::kOtherContent;
  expect_stop("/opt/worker, which 412 (worker) runs or has mapped, has other content", "install");
  verdicts_["/opt/worker"] = FileVerdict::kLonger;
  expect_stop("is longer at the target", "install the same version");
}
TEST_F(Obstacles, AProgramThatCouldNotBeCompared) {
  verdicts_["/opt/worker"] = FileVerdict::kUnchecked;
  expect_warning("no more could be compared", "same version");
}
TEST_F(Obstacles, AMissingWorkingDirectory) {
  verdicts_["/home/w"] = FileVerdict::kMissing;
  expect_stop("the working directory /home/w of 412 (worker) is not at the target", "make it");
}
TEST_F(Obstacles, AMissingRootDirectory) {
  tree_.processes[0].root_directory = "/jail";
  tree_.files.push_back({.path = "/jail", .type = "directory", .pid = 412});
  verdicts_["/jail"] = FileVerdict::kMissing;
  expect_stop("the root directory /jail of 412 (worker) is not at the target", "make it");
}
TEST_F(Obstacles, AnOpenFileThatIsMissing) {
  add_file("/data/in");
  verdicts_["/data/in"] = FileVerdict::kMissing;
  expect_stop("/data/in, which 412 (worker) has open, is not at the target", "copy it there");
  tree_.files.back().filesystem = "nfs4";
  expect_stop("is not at the target", "mount the same nfs4 file system");
}
TEST_F(Obstacles, AnOpenFileOfAnotherLengthStopsAsItWouldStopCriu) {
  add_file("/data/in");
  verdicts_["/data/in"] = FileVerdict::kShorter;
  expect_stop("/data/in, which 412 (worker) has open, is shorter", "copy it");
  verdicts_["/data/in"] = FileVerdict::kOtherMode;
  expect_stop("/data/in, which 412 (worker) has open, has other permissions", "chmod 644 /data/in");
  verdicts_["/data/in"] = FileVerdict::kOtherType;
  expect_stop("is no file at the target", "");
}
TEST_F(Obstacles, AnOpenFileOfOtherContentIsTheUsersBusiness) {
  add_file("/data/in");
  verdicts_["/data/in"] = FileVerdict::kOtherContent;
  expect_warning("/data/in, which 412 (worker) has open, has other content", "copy it");
}
TEST_F(Obstacles, AFileOpenForWritingThatIsNotShared) {
  add_file("/data/out").writable = true;
  expect_warning("/data/out, which 412 (worker) has open for writing, is not shared",
                 "target's copy");
  verdicts_["/data/out"] = FileVerdict::kShorter;
  expect_stop("is shorter at the target", "file system of both nodes");
  verdicts_["/data/out"] = FileVerdict::kShared;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, SharedMemoryInAFileOfTheNode) {
  FileFact& file = add_file("/dev/shm/segment");
  file.filesystem = "tmpfs";
  file.mapped = file.mapped_for_writing = file.writable = true;
  expect_stop("/dev/shm/segment, which 412 (worker) has mapped to write into it, is not shared",
              "mount namespace");
  file.path = "/tmp/hsperfdata_root/412";
  expect_stop("/tmp/hsperfdata_root/412, which 412 (worker) has mapped to write into it",
              "-XX:-UsePerfData");
  verdicts_[file.path] = FileVerdict::kShared;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Obstacles, AMappedFileThatIsTheSameForNow) {
  FileFact& file = add_file("/data/table");
  file.filesystem = "ext4";
  file.mapped = file.mapped_for_writing = file.writable = true;
  expect_warning("/data/table, which 412 (worker) runs or has mapped, is not shared", "copy");
  verdicts_["/data/table"] = FileVerdict::kUnchecked;
  expect_stop("has mapped to write into it, is not shared", "file system of both nodes");
}
TEST_F(Obstacles, ALogMayBeOfAnotherLength) {
  FileFact& log = add_file("/var/log/w");
  log.writable = log.append_only = true;
  verdicts_["/var/log/w"] = FileVerdict::kShorter;
  expect_warning("/var/log/w, which 412 (worker) has open for writing, is shorter", "appending");
}

// --- all together ---

TEST_F(Obstacles, WhatStopsComesFirstAndEachIsToldOnce) {
  target_.kernel = "5.10.0";
  add("lock", "/var/db");
  add("lock", "/var/db");
  const std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].severity, Severity::kStops);
  EXPECT_EQ(found[1].severity, Severity::kWarns);
  EXPECT_TRUE(stops(found));
}
TEST_F(Obstacles, OfTheSourceAloneNeedNoTarget) {
  add("lock", "/var/db");
  EXPECT_EQ(find_obstacles_at_source(options_, source_, {tree_}).size(), 1u);
}

TEST(MoveOptions, AreReadFromThoseOfCriu) {
  MoveOptions options;
  options.read({"--tcp-established", "-j", "-x", "-l", "--link-remap", "--force-irmap",
                "--ghost-limit=64M", "--external", "net[1]:x", "--tcp-close"});
  EXPECT_TRUE(options.tcp_established && options.tcp_close && options.shell_job &&
              options.ext_unix_sk && options.file_locks && options.link_remap &&
              options.force_irmap && options.external_files);
  EXPECT_EQ(options.ghost_limit_bytes, 64u << 20);
  EXPECT_TRUE(options.tree_options().external_unix_sockets);
}

TEST_F(Obstacles, AProcessorOnWhichCriuWouldNotRestore) {
  answers_.processor_problem = "CPU xsave size mismatch";
  expect_stop("says criu cpuinfo check there: CPU xsave size mismatch", "choose a target");
  options_.read({"--cpu-cap=none"});
  expect(Severity::kWarns, "CPU xsave size mismatch", "--cpu-cap was given");
}

class ContainerObstacles : public Obstacles {
 protected:
  ContainerObstacles() {
    tree_.own_namespaces = {"mnt", "pid"};
    tree_.processes[0].namespace_pids = {412, 1};
    ContainerFacts container{.state = {"job", "running", 412, "/srv/job", "/srv/job/rootfs", "now"},
                             .runc_version = "1.1.5"};
    container.bundle.directory = "/srv/job";
    container.bundle.root_file_system = "/srv/job/rootfs";
    container.bundle.mounts = {{"/home", ""}};
    set_container(tree_, container);
    answers_.containers = {{.runc_version = "1.1.5", .bundle = BundleVerdict::kSame}};
  }
  ContainerFacts& container() { return *tree_.container; }
  ContainerAnswer& answer() { return answers_.containers[0]; }
};

TEST_F(ContainerObstacles, NoneWhereTheBundleIsTheSame) { EXPECT_THAT(find(), IsEmpty()); }

TEST_F(ContainerObstacles, ItsFilesAreComparedByTheirPathsOnTheNode) {
  verdicts_["/srv/job/rootfs/opt/worker"] = FileVerdict::kOtherContent;
  expect_stop("/srv/job/rootfs/opt/worker", "same version");
}

TEST_F(ContainerObstacles, WhatTheTargetLacks) {
  answer().bundle = BundleVerdict::kMissing;
  expect_stop("the bundle /srv/job of the container job is not at the target", "copy it there");
  answer().bundle = BundleVerdict::kOther;
  expect_stop("config.json of the container job is another one", "copy the bundle");
  answer().bundle = BundleVerdict::kSame;
  answer().name_taken = true;
  expect_stop("the container job is there at the target already", "runc delete job");
  answer().name_taken = false;
  answer().paths_missing = {"/srv/data"};
  expect_stop("the container job needs /srv/data", "make them there");
  answer().paths_missing.clear();
  answer().unified_cgroups = true;
  expect_stop("control groups are of version 1 here and of version 2", "unified_cgroup_hierarchy");
  answer().unified_cgroups = false;
  answer().runc_problem = "no runc found in PATH";
  expect_stop("runc does not work at the target: no runc found", "install");
}

TEST_F(ContainerObstacles, WhatItIsLikeHere) {
  container().state.status = "paused";
  expect_stop("the container job is paused", "runc resume");
  container().state.status = "running";
  container().bundle.terminal = true;
  expect_stop("has a terminal", "\"terminal\": false");
  container().bundle.terminal = false;
  container().outsiders = {500};
  expect_stop("the processes 500 were put into the container job", "let them end");
}

TEST_F(ContainerObstacles, AnAnswerAboutFewerContainersDoesNotFit) {
  const PreflightQuestions questions = questions_about({tree_}, options_);
  ASSERT_EQ(questions.containers.size(), 1u);
  nlohmann::json answers = {{"ok", true}, {"answers", nlohmann::json::object()}};
  EXPECT_FALSE(read_answers(answers, questions));
}

}  // namespace
}  // namespace ppmr
