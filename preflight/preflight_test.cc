// Tests the finding for each problem, with invented nodes and processes.
#include "preflight/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

NodeFacts good_node(const std::string& host) {
  return {.host = host,
          .architecture = "x86_64",
          .kernel = "6.1.0-18-amd64",
          .criu_path = "/usr/sbin/criu",
          .criu_version = "4.2.1",
          .features = {kLazyFeature},
          .cpu_features = {"avx2", "sse2"},
          .memory_available_bytes = 8ULL << 30,
          .user = 0,
          .capabilities = ~0ULL,
          .hard_limits = {{"Max open files", "1024"}}};
}

// Returns process 412 (worker): it has its own session, one program, and no problems.
TreeFacts plain_tree() {
  TreeFacts tree;
  tree.root = 412;
  tree.name = "worker";
  tree.processes = {{.pid = 412,
                     .name = "worker",
                     .threads = {412, 413},
                     .namespace_pids = {412},
                     .session = 412,
                     .working_directory = "/home/w",
                     .root_directory = "/",
                     .hard_limits = {{"Max open files", "1024"}}}};
  tree.files = {
      {.path = "/opt/worker", .type = "file", .size_bytes = 9, .mapped = true, .pid = 412},
      {.path = "/home/w", .type = "directory", .pid = 412}};
  tree.memory_bytes = tree.distinct_memory_bytes = 1 << 30;
  return tree;
}

class Preflight : public testing::Test {
 protected:
  // The nodes have no problems; each test adds one.
  NodeFacts source_ = good_node("left"), target_ = good_node("right");
  TreeFacts tree_ = plain_tree();
  MoveOptions options_;
  std::map<std::string, FileVerdict> verdicts_;
  PreflightAnswers answers_;

  std::vector<Finding> find() {
    const PreflightQuestions questions = make_questions({tree_}, options_);
    PreflightAnswers answers = answers_;
    answers.node = target_;
    for (const FileFact& file : questions.files) {
      const auto verdict = verdicts_.find(file.path);
      answers.files.push_back(verdict == verdicts_.end() ? FileVerdict::kSame : verdict->second);
    }
    return check_move(options_, source_, {tree_}, questions, answers);
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

TEST_F(Preflight, FindsNothingForAPlainProcess) { EXPECT_THAT(find(), IsEmpty()); }

// --- nodes ---

TEST_F(Preflight, StopsTheMoveIfTheTargetHasNoCriu) {
  target_.criu_path.clear();
  target_.criu_version.clear();
  expect_stop("no CRIU found on the target (right)", "install Debian's criu there");
}
TEST_F(Preflight, StopsTheMoveIfTheSourceHasNoCriu) {
  source_.criu_path.clear();
  source_.criu_version.clear();
  expect_stop("no CRIU found on the source (left)", "install Debian's criu there");
}
TEST_F(Preflight, StopsTheMoveIfCriuDoesNotWork) {
  target_.criu_problem = "\"no vDSO\"";
  expect_stop("CRIU does not work on the target (right): /usr/sbin/criu check failed: \"no vDSO\"",
              "install CRIU 4.2 or later there");
}
TEST_F(Preflight, StopsTheMoveIfTheTargetsCriuHasAnotherMajorVersion) {
  target_.criu_version = "3.17.1";
  expect_stop("CRIU is 4.2.1 here and 3.17.1 at the target", "install the same");
}
TEST_F(Preflight, WarnsIfTheTargetsCriuHasAnOlderMinorVersion) {
  target_.criu_version = "4.1";
  expect_warning("CRIU is 4.2.1 here and 4.1 at the target", "older");
}
TEST_F(Preflight, AcceptsANewerMinorVersionOfCriuAtTheTarget) {
  target_.criu_version = "4.10";
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveIfCriuDoesNotRunAsRoot) {
  target_.user = 1000;
  target_.capabilities = 1 << 24;  // the node has only CAP_SYS_RESOURCE
  expect_stop("run as user 1000 on the target", "as root");
}
TEST_F(Preflight, StopsTheMoveIfTheTargetHasAnotherArchitecture) {
  target_.architecture = "aarch64";
  target_.cpu_features = {"asimd"};
  expect_stop("x86_64 here and aarch64 at the target", "same architecture");
}
TEST_F(Preflight, StopsTheMoveIfTheTargetLacksInstructionSets) {
  target_.cpu_features = {"sse2"};
  expect_stop("lacks instruction sets that programs may use: avx2", "same or a newer");
}
TEST_F(Preflight, AcceptsATargetWithMoreInstructionSets) {
  target_.cpu_features = {"avx2", "avx512f", "sse2"};
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, WarnsIfTheTargetsKernelIsOlder) {
  target_.kernel = "5.10.0";
  expect_warning("kernel (5.10.0) is older", "");
}
TEST_F(Preflight, WarnsIfALazyRestoreIsNotPossible) {
  target_.features = {};
  expect_warning("does not support a lazy restore", "frozen until");
  options_.lazily = false;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveIfTheImageStoreHasTooLittleSpace) {
  target_.store_free_bytes = 1 << 29;
  expect_stop("the move needs 1.0 GiB of memory, but the target's image store has 512.0 MiB free",
              "--spill-dir");
}
TEST_F(Preflight, StopsTheMoveIfTheTargetIsDrained) {
  answers_.drained_mount = "/mnt/in";
  expect_stop("is drained and begins nothing new", "ppmr drain --resume /mnt/in");
}
TEST_F(Preflight, StopsTheMoveIfTheTargetHasTooLittleMemory) {
  target_.memory_available_bytes = 1 << 29;
  expect_stop("the target has 512.0 MiB free", "free memory");
}
TEST_F(Preflight, WarnsIfCriuCannotHoldTheMemoryInPipes) {
  source_.capabilities &= ~(uint64_t{1} << kCapSysResource);
  source_.pipe_max_bytes = 1 << 20;
  // 1 GiB needs 1,024 pipes, and there are other descriptors.
  source_.hard_limits["Max open files"] = "3072";
  EXPECT_THAT(find(), IsEmpty());
  source_.hard_limits["Max open files"] = "3071";
  expect_warning("more pipes than this node allows", "fs.pipe-max-size");
  source_.hard_limits["Max open files"] = "unlimited";
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, CountsMemoryThatProcessesShareOnceUnlessItGoesThroughTheImages) {
  tree_.memory_bytes = 4ULL << 30;
  EXPECT_EQ(memory_to_move_bytes(options_, source_, tree_), 1U << 30);
  target_.store_free_bytes = 1 << 30;
  EXPECT_THAT(find(), IsEmpty());
  options_.memory_apart = false;
  EXPECT_EQ(memory_to_move_bytes(options_, source_, tree_), 4ULL << 30);
  expect_stop("the move needs 4.0 GiB of memory", "--spill-dir");
}
TEST_F(Preflight, WarnsOfLittleMemory) {
  target_.memory_available_bytes = (1 << 30) + (1 << 29);
  expect_warning("the target has 1.5 GiB free", "needs that memory twice");
}

// --- processes ---

TEST_F(Preflight, StopsTheMoveOfAnotherUsersProcessIfCriuLacksTheCapability) {
  tree_.processes[0].uid = 1000;
  source_.capabilities &= ~(1ULL << 24);
  expect_stop("412 (worker) runs as user 1000, and CRIU lacks CAP_SYS_RESOURCE on the source",
              "capability");
}
TEST_F(Preflight, WarnsOncePerTreeIfTheTargetLacksTheRightToSetAHardLimit) {
  target_.capabilities &= ~(1ULL << 24);
  EXPECT_THAT(find(), IsEmpty());
  tree_.processes[0].hard_limits["Max open files"] = "unlimited";
  tree_.processes.push_back(tree_.processes[0]);  // the finding appears once per tree
  tree_.processes[1].pid = 414;
  expect_warning("412 (worker) has the hard limit 'Max open files' = unlimited", "lower limit");
}
TEST_F(Preflight, StopsTheMoveOfATracedProcess) {
  tree_.processes[0].tracer = 77;
  expect_stop("process 77 (a debugger or strace) traces 412 (worker)", "detach");
}
TEST_F(Preflight, StopsTheMoveOfAProcessInAFrozenControlGroup) {
  tree_.processes[0].freezer = "/sys/fs/cgroup/a/cgroup.freeze";
  expect_stop("412 (worker) is in a frozen control group",
              "`echo 0 > /sys/fs/cgroup/a/cgroup.freeze`");
}
TEST_F(Preflight, StopsTheMoveOfALandlockedProcessUnlessTheLossIsAccepted) {
  tree_.processes[0].is_landlocked = true;
  expect_stop("412 (worker) is restricted by Landlock", "--allow-loss landlock");
  options_.allowed_losses = {"landlock"};
  expect_warning("412 (worker) is restricted by Landlock", "");
}
TEST_F(Preflight, StopsTheMoveOfAProcessThatDeniesWriteExecuteUnlessTheLossIsAccepted) {
  tree_.processes[0].denies_write_execute = true;
  expect_stop("412 (worker) may not make memory executable", "--allow-loss mdwe");
  options_.allowed_losses = {"mdwe"};
  expect_warning("412 (worker) may not make memory executable", "");
}
TEST_F(Preflight, StopsTheMoveOfAProcessThatDispatchesItsSystemCalls) {
  tree_.processes[0].dispatches_calls = true;
  expect_stop("412 (worker) dispatches its own system calls", "keep it here");
}
TEST_F(Preflight, StopsTheMoveOfAProcessWithProtectedMappingsUnlessTheLossIsAccepted) {
  tree_.processes[0].lost.has_seals = true;
  expect_stop("412 (worker) has sealed mappings", "--allow-loss seals");
  options_.allowed_losses = {"seals"};
  expect_warning("412 (worker) has sealed mappings", "");
  tree_.processes[0].lost = {.phrases = {}, .has_seals = false, .has_protection_keys = true};
  expect_stop("412 (worker) protects mappings by keys", "--allow-loss protection-keys");
  options_.allowed_losses = {"protection-keys"};
  expect_warning("412 (worker) protects mappings by keys", "");
}
TEST_F(Preflight, StopsTheMoveOfAProcessThatFaultsOnCpuQueriesUnlessTheLossIsAccepted) {
  tree_.processes[0].faults_on_cpu_queries = true;
  expect_stop("412 (worker) gets a signal for the instructions RDTSC", "--allow-loss cpu-faults");
  options_.allowed_losses = {"cpu-faults"};
  expect_warning("412 (worker) gets a signal for the instructions RDTSC", "");
}
TEST_F(Preflight, WarnsOfAProcessThatCouldNotBeChecked) {
  tree_.processes[0].was_asked = false;
  expect_warning("412 (worker) could not be checked for attributes", "--dry-run");
}
TEST_F(Preflight, WarnsIfAProcessCannotBeCheckedForLandlock) {
  tree_.processes[0].landlock_is_unknown = true;
  expect_warning("412 (worker) could not be checked for restrictions of Landlock", "setpriv");
}
TEST_F(Preflight, StopsTheMoveOfAProcessWithSegmentsOfItsOwn) {
  tree_.processes[0].has_segments = true;
  expect_stop("412 (worker) has segments of its own", "keep it here");
}
TEST_F(Preflight, WarnsOfAttributesThatNeitherCriuNorPpmrCarries) {
  tree_.processes[0].lost.phrases = {"locking of future mappings"};
  expect_warning("412 (worker) would lose its locking of future mappings", "without it");
}
TEST_F(Preflight, StopsTheMoveOfAUserOfSystemVObjectsUnlessTheLossIsAccepted) {
  add("system v object", "semaphore set 3");
  expect_stop("412 (worker) uses semaphore set 3", "--allow-loss system-v");
  options_.allowed_losses = {"system-v"};
  expect_warning("412 (worker) uses semaphore set 3", "");
}
TEST_F(Preflight, StopsTheMoveOfAProcessWithTheMemoryOfItsParent) {
  add("common memory", "411");
  expect_stop("412 (worker) has the same memory as process 411", "keep it here");
}
TEST_F(Preflight, StopsTheMoveOfAProcessWithAMessageQueue) {
  add("message queue", "/jobs");
  expect_stop("412 (worker) has the message queue /jobs open", "close the queue");
}
TEST_F(Preflight, WarnsOfAKeyring) {
  tree_.processes[0].has_keyring = true;
  expect_warning("412 (worker) has a keyring of its own", "add its keys again");
}
TEST_F(Preflight, WarnsOfInheritedAttributesThatCannotBeCarried) {
  tree_.lost_attributes = {"memory policy (NUMA), in which its tasks differ"};
  expect_warning("412 (worker) would lose its memory policy (NUMA)", "same value");
}
TEST_F(Preflight, WarnsOfASeccompFilter) {
  tree_.processes[0].seccomp_mode = 2;
  expect_warning("412 (worker) has a seccomp filter", "CONFIG_SECCOMP_FILTER");
}
TEST_F(Preflight, StopsTheMoveOfAProcessWhoseSessionLeaderStaysBehind) {
  tree_.processes[0].session = 300;
  expect_stop("412 (worker) belongs to the session of process 300", "--shell-job");
  options_.shell_job = true;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveIfATerminalIsOpenUnlessItsMasterMovesToo) {
  add("terminal", "/dev/pts/3");
  expect_stop("412 (worker) uses the terminal /dev/pts/3", "screen or tmux");
  add("terminal", "/dev/ptmx");  // now the terminal moves with it
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveUnlessTheRootProcessIsFirstInItsPidNamespace) {
  tree_.own_namespaces = {"pid"};
  tree_.processes[0].namespace_pids = {412, 7};
  expect_stop("is not the first process of its pid namespace", "first process of that namespace");
  tree_.processes[0].namespace_pids = {412, 1};
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, WarnsThatFilesAreNotComparedIfTheTreeHasItsOwnMountNamespace) {
  tree_.own_namespaces = {"mnt"};
  EXPECT_THAT(make_questions({tree_}, options_).files, IsEmpty());
  expect_warning("has its own mount namespace", "not compared");
}
TEST_F(Preflight, WarnsThatAddressesAreNotComparedIfTheTreeHasItsOwnNetworkNamespace) {
  tree_.own_namespaces = {"net"};
  tree_.sockets = {{.protocol = "tcp", .local_address = "10.0.0.1", .local_port = 80, .state = 10}};
  EXPECT_THAT(make_questions({tree_}, options_).addresses, IsEmpty());
  expect_warning("has its own network namespace", "not compared");
}
TEST_F(Preflight, NeedsNoAddressForSocketsOfMulticastGroups) {
  for (const char* group : {"239.1.2.3", "255.255.255.255", "0.0.0.0", "ff02::fb", "::"}) {
    tree_.sockets = {{.protocol = "udp", .local_address = group, .local_port = 5353}};
    EXPECT_THAT(make_questions({tree_}, options_).addresses, IsEmpty()) << group;
  }
  tree_.sockets[0].local_address = "fe80::1";
  EXPECT_THAT(make_questions({tree_}, options_).addresses, SizeIs(1));
}
TEST_F(Preflight, StopsTheMoveIfPidsAreTakenAtTheTarget) {
  answers_.pids_taken = {412};
  expect_stop("pid 412 is taken at the target",
              "end the process that has it there (`ps -f -p 412 -s 412`)");
  answers_.pids_taken = {412, 413};
  expect_stop("the pids 412, 413 are taken at the target", "end the processes that have them");
}
TEST_F(Preflight, AsksTheTargetWhetherThreadIdsAreFree) {
  EXPECT_THAT(make_questions({tree_}, options_).pids, testing::ElementsAre(412, 413));
  options_.own_pid_namespace = true;
  EXPECT_THAT(make_questions({tree_}, options_).pids, IsEmpty());
}

// --- what processes have ---

TEST_F(Preflight, NamesTheSettingsThatKeepMpiLibrariesOffAnRdmaDevice) {
  tree_.peculiarities = {{"device", "/dev/infiniband/uverbs0", 412, "dev[231/192]"}};
  expect_stop("412 (worker) has the device /dev/infiniband/uverbs0 open", "UCX_TLS=tcp,posix,self");
}
TEST_F(Preflight, WarnsOfRdmaThatAProcessOfTheTreeReleases) {
  add("device", "/dev/infiniband/uverbs0");
  tree_.rdma_releasers = {412};
  expect_warning("412 (worker) uses RDMA (/dev/infiniband/uverbs0)",
                 "asks 412 (worker) to release it");
  add("anonymous file", "[infinibandevent]");
  EXPECT_FALSE(stops(find()));
  add("device", "/dev/nvidia0");
  EXPECT_TRUE(stops(find()));
}
TEST_F(Preflight, StopsTheMoveIfAProcessKnowsThatItCannotReleaseRdma) {
  tree_.rdma_releasers = {412};
  tree_.rdma_checks.push_back({.pid = 412, .hindrances = {"a peer does not answer (10.0.0.2)"}});
  expect_stop("412 (worker) cannot release RDMA: a peer does not answer (10.0.0.2)",
              "ppmr rdma run");
}
TEST_F(Preflight, WarnsIfAProcessDoesNotSayWhetherItCanReleaseRdma) {
  tree_.rdma_releasers = {412};
  tree_.rdma_checks.push_back({.pid = 412, .silence = "process 412 does not check its devices"});
  expect_warning("not known whether 412 (worker) can release RDMA: process 412 does not check",
                 "if it is stopped, let it go on");
}
TEST_F(Preflight, StopsTheMoveIfTheTargetsRdmaDeviceCannotMakeTheSame) {
  RdmaNeeds needs;
  needs.device = "rxe0";
  needs.queue_pairs = 6;
  tree_.rdma_checks = {{.pid = 412, .needs = {needs}}, {.pid = 413, .needs = {needs}}};
  expect_stop("412 (worker) uses the RDMA device rxe0, and the target has no RDMA device",
              "choose a target whose device can make the same");
  target_.rdma_ports = {"rxe0:1"};
  EXPECT_FALSE(stops(find())) << "a target of version 0.2.0 does not say what its device can make";
  RdmaAbilities port;
  port.device = "rxe0";
  port.is_active = true;
  port.queue_pairs = 11;
  target_.rdma_abilities = {port};
  expect_stop("the target's device rxe0 can have at most 11 queue pairs, and 12 are needed",
              "ppmr devices");
  target_.rdma_abilities[0].queue_pairs = 12;
  EXPECT_FALSE(stops(find()));
}
TEST_F(Preflight, StopsTheMoveIfADeviceIsOpenAndNotGivenAsExternal) {
  tree_.peculiarities = {{"device", "/dev/nvidia0", 412, "dev[195/0]"}};
  expect_stop("412 (worker) has the device /dev/nvidia0 open", "close");
  options_.read({"--external", "net[1]:x", "--external=dev[195/1]:y"});
  expect_stop("412 (worker) has the device /dev/nvidia0 open", "close");
  options_.read({"--external", "dev[195/0]:y"});
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveOfAProcessThatHoldsAFileLock) {
  add("lock", "/var/db");
  expect_stop("412 (worker) holds a lock on /var/db", "--file-locks");
  options_.file_locks = true;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveOfALockOnAFileThatBothNodesShare) {
  options_.file_locks = true;
  FileFact& file = add_file("/shared/db");
  file.lock_excludes = file.lock_is_lease = true;
  EXPECT_THAT(find(), IsEmpty()) << "each node has its own";
  verdicts_["/shared/db"] = FileVerdict::kShared;
  expect_stop("/shared/db is one file for both nodes, and 412 (worker) holds a lock", "release");
  file.lock_is_lease = false;
  EXPECT_THAT(find(), IsEmpty()) << "a lock of a file description moves";
  file.lock_is_of_process = true;
  EXPECT_THAT(find(), IsEmpty()) << "a lock of a process moves";
  options_.post_copy = true;
  expect_stop("/shared/db is one file for both nodes, and 412 (worker) holds a lock",
              "without --post-copy");
  options_.lazily = false;
  expect_stop("/shared/db is one file for both nodes, and 412 (worker) holds a lock", "--eager");
  file.lock_excludes = false;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveOfAProcessInANamespaceBelowTheRoots) {
  add("nested namespace", "uts");
  expect_stop("412 (worker) is in a uts namespace of its own", "alone");
}
TEST_F(Preflight, StopsTheMoveOfAProcessWithAPidfdOfAnother) {
  add("foreign process", "77");
  expect_stop("412 (worker) has a pidfd of process 77", "descendant");
}
TEST_F(Preflight, StopsTheMoveOfAUserNamespaceThatIsNoContainer) {
  tree_.own_namespaces = {"user"};
  expect_stop("has its own user namespace", "container");
}
TEST_F(Preflight, WarnsOfInotify) {
  add("inotify", "inotify");
  expect_warning("412 (worker) watches files", "--force-irmap");
}
TEST_F(Preflight, StopsTheMoveIfCriuDoesNotSupportASocketType) {
  add("socket", "SCTP");
  expect_stop("a type that CRIU does not support (SCTP)", "close");
}
TEST_F(Preflight, StopsTheMoveOfAProcessThatUsesIoUring) {
  add("anonymous file", "[io_uring]");
  expect_stop("412 (worker) uses [io_uring]", "without io_uring");
}
TEST_F(Preflight, StopsTheMoveIfSystemVMemoryIsInTheIpcNamespaceOfTheNode) {
  add("system v memory", "/SYSV00000000");
  expect_stop("uses System V shared memory", "unshare --ipc");
  tree_.own_namespaces = {"ipc"};
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveIfASharedMemoryInodeNumberEqualsASystemVSegmentId) {
  add("ambiguous shared memory", "2");
  expect_stop("whose inode number is the id of its System V segment 2", "restart");
}
TEST_F(Preflight, StopsTheMoveIfAFileInAPpmrMountIsOpen) {
  add("ppmr mount", "/mnt/out/x");
  expect_stop("has /mnt/out/x open, which is in a ppmr mount", "close");
}
TEST_F(Preflight, StopsTheMoveIfAFileOfAnotherMountNamespaceIsOpenAndNotExternal) {
  tree_.peculiarities = {{"foreign mount", "/dev/null", 412, "file[5:23]"}};
  expect_stop("has /dev/null open from another mount namespace",
              "belong to its own mount namespace");
  options_.read({"--external", "net[1]:x", "--external", "dev[1/3]:y", "--external=file[5:24]"});
  expect_stop("has /dev/null open from another mount namespace",
              "belong to its own mount namespace");
  options_.read({"--external=file[5:23]"});
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveIfADeletedFileExceedsTheGhostLimit) {
  FileFact& file = add_file("/tmp/scratch");
  file.deleted = true;
  EXPECT_THAT(find(), IsEmpty());
  file.size_bytes = 5 << 20;
  expect_stop("uses /tmp/scratch (5.0 MiB), which was deleted", "--ghost-limit=6M");
  options_.read({"--ghost-limit", "6M"});
  EXPECT_THAT(find(), IsEmpty());
  file.size_bytes = uint64_t{5} << 30;
  expect_stop("uses /tmp/scratch (5.0 GiB), which was deleted", "keep the name of the file");
}
TEST_F(Preflight, StopsTheMoveIfADeletedFileHasAnotherHardLink) {
  FileFact& file = add_file("/tmp/scratch");
  file.deleted = true;
  file.links = 1;
  expect_stop("was deleted but has another hard link", "--link-remap");
  options_.link_remap = true;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveOfTcpConnectionsWithoutTheOptionTcpEstablished) {
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
  expect_stop("the target does not have the address 10.0.0.1", "add it there (ip address add)");
  answers_.addresses_missing = {"10.0.0.1", "10.0.0.2"};
  expect_stop("the target does not have the addresses 10.0.0.1, 10.0.0.2", "add them there");
}
TEST_F(Preflight, StopsTheMoveOfConnectionsThatWaitToBeAccepted) {
  add("tcp backlog", "10.0.0.1:80");
  expect_stop("412 (worker) has not accepted a TCP connection at 10.0.0.1:80", "--skip-in-flight");
  options_.read({"--skip-in-flight"});
  expect_warning("and CRIU drops it", "connect again");
  tree_.peculiarities.clear();
  add("unix backlog", "/run/w");
  expect_stop("connection with data over the Unix socket /run/w", "try again");
  tree_.peculiarities.clear();
  add("unix backlog from elsewhere", "/run/w");
  expect_stop("of a program that does not move over the Unix socket /run/w", "end that program");
  tree_.peculiarities.clear();
  add("unix backlog to elsewhere", "/run/w");
  expect_stop("412 (worker) waits for a program that does not move", "close the connection");
}
TEST_F(Preflight, StopsTheMoveIfAPortIsInUseAtTheTarget) {
  answers_.listeners_taken = {{"tcp", "0.0.0.0", 80}};
  expect_stop("tcp port 80 is already in use at the target", "end the process");
}

// --- files ---

TEST_F(Preflight, StopsTheMoveIfAProgramIsMissingAtTheTarget) {
  verdicts_["/opt/worker"] = FileVerdict::kMissing;
  expect_stop("/opt/worker, which 412 (worker) runs or has mapped, does not exist at the target",
              "install the same version there");
}
TEST_F(Preflight, StopsTheMoveIfAProgramDiffersAtTheTarget) {
  verdicts_["/opt/worker"] = FileVerdict::kOtherContent;
  expect_stop("/opt/worker, which 412 (worker) runs or has mapped, has different content",
              "install");
  verdicts_["/opt/worker"] = FileVerdict::kLonger;
  expect_stop("is longer at the target", "install the same version");
}
TEST_F(Preflight, WarnsOfAProgramThatWasNotCompared) {
  verdicts_["/opt/worker"] = FileVerdict::kUnchecked;
  expect_warning("its content was not compared", "same version");
}
TEST_F(Preflight, StopsTheMoveIfTheWorkingDirectoryIsMissingAtTheTarget) {
  verdicts_["/home/w"] = FileVerdict::kMissing;
  expect_stop("the working directory /home/w of 412 (worker) does not exist at the target",
              "create it");
}
TEST_F(Preflight, StopsTheMoveIfTheRootDirectoryIsMissingAtTheTarget) {
  tree_.processes[0].root_directory = "/jail";
  tree_.files.push_back({.path = "/jail", .type = "directory", .pid = 412});
  verdicts_["/jail"] = FileVerdict::kMissing;
  expect_stop("the root directory /jail of 412 (worker) does not exist at the target", "create it");
}
TEST_F(Preflight, StopsTheMoveIfAnOpenFileIsMissingAtTheTarget) {
  add_file("/data/in");
  verdicts_["/data/in"] = FileVerdict::kMissing;
  expect_stop("/data/in, which 412 (worker) has open, does not exist at the target",
              "copy it there");
  tree_.files.back().filesystem = "nfs4";
  expect_stop("does not exist at the target", "mount the same nfs4 file system");
}
TEST_F(Preflight, StopsTheMoveIfCriuWouldRefuseTheTargetsCopyOfAnOpenFile) {
  add_file("/data/in");
  verdicts_["/data/in"] = FileVerdict::kShorter;
  expect_stop("/data/in, which 412 (worker) has open, is shorter", "copy it");
  verdicts_["/data/in"] = FileVerdict::kOtherMode;
  expect_stop("/data/in, which 412 (worker) has open, has different permissions",
              "chmod 644 /data/in");
  verdicts_["/data/in"] = FileVerdict::kOtherType;
  expect_stop("is not a file at the target", "");
}
TEST_F(Preflight, WarnsOfAnOpenFileWithDifferentContent) {
  add_file("/data/in");
  verdicts_["/data/in"] = FileVerdict::kOtherContent;
  expect_warning("/data/in, which 412 (worker) has open, has different content", "copy it");
}
TEST_F(Preflight, WarnsOfAFileOpenForWritingThatIsNotOnSharedStorage) {
  add_file("/data/out").writable = true;
  expect_warning(
      "/data/out, which 412 (worker) has open for writing, is not on a shared file system",
      "target's copy");
  verdicts_["/data/out"] = FileVerdict::kShorter;
  expect_stop("is shorter at the target", "shared file system");
  verdicts_["/data/out"] = FileVerdict::kShared;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, StopsTheMoveIfSharedMemoryIsInAFileThatTheNodesDoNotShare) {
  FileFact& file = add_file("/dev/shm/segment");
  file.filesystem = "tmpfs";
  file.mapped = file.mapped_for_writing = file.writable = true;
  expect_stop("/dev/shm/segment, which 412 (worker) has mapped for writing, is not on a shared",
              "own mount namespace");
  file.path = "/tmp/hsperfdata_root/412";
  expect_stop("/tmp/hsperfdata_root/412, which 412 (worker) has mapped for writing",
              "-XX:-UsePerfData");
  verdicts_[file.path] = FileVerdict::kShared;
  EXPECT_THAT(find(), IsEmpty());
}
TEST_F(Preflight, WarnsOfAnUnsharedFileMappedForWritingIfItsCopyAtTheTargetIsEqual) {
  FileFact& file = add_file("/data/table");
  file.filesystem = "ext4";
  file.mapped = file.mapped_for_writing = file.writable = true;
  expect_warning(
      "/data/table, which 412 (worker) runs or has mapped, is not on a shared file system", "copy");
  verdicts_["/data/table"] = FileVerdict::kUnchecked;
  expect_stop("has mapped for writing, is not on a shared", "shared file system");
}
TEST_F(Preflight, WarnsIfAnAppendOnlyFileIsShorterAtTheTarget) {
  FileFact& log = add_file("/var/log/w");
  log.writable = log.append_only = true;
  verdicts_["/var/log/w"] = FileVerdict::kShorter;
  expect_warning("/var/log/w, which 412 (worker) has open for writing, is shorter", "append");
}

// --- all together ---

TEST_F(Preflight, SortsFindingsBySeverityAndReportsEachOnce) {
  target_.kernel = "5.10.0";
  add("lock", "/var/db");
  add("lock", "/var/db");
  const std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].severity, Severity::kStops);
  EXPECT_EQ(found[1].severity, Severity::kWarns);
  EXPECT_TRUE(stops(found));
}
TEST(MoveOptions, AreReadFromCriuOptions) {
  MoveOptions options;
  options.read({"--tcp-established", "-j", "-x", "-l", "--link-remap", "--force-irmap",
                "--ghost-limit=64M", "--external", "net[1]:x", "--tcp-close"});
  EXPECT_TRUE(options.tcp_established && options.tcp_close && options.shell_job &&
              options.ext_unix_sk && options.file_locks && options.link_remap &&
              options.force_irmap);
  EXPECT_THAT(options.externals, testing::ElementsAre("net[1]"));
  EXPECT_EQ(options.ghost_limit_bytes, 64u << 20);
  EXPECT_TRUE(options.tree_options().external_unix_sockets);
}

TEST_F(Preflight, StopsTheMoveIfCriuRefusesTheTargetsProcessor) {
  answers_.processor_problem = "CPU xsave size mismatch";
  expect_stop("criu cpuinfo check failed there: CPU xsave size mismatch", "choose a target");
  options_.read({"--cpu-cap=none"});
  expect(Severity::kWarns, "CPU xsave size mismatch", "--cpu-cap option");
}

class ContainerPreflight : public Preflight {
 protected:
  ContainerPreflight() {
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

TEST_F(ContainerPreflight, FindsNothingIfTheTargetHasTheSameBundle) {
  EXPECT_THAT(find(), IsEmpty());
}

TEST_F(ContainerPreflight, MovesLocksOfFileDescriptionsOnAFileThatBothNodesShare) {
  options_.file_locks = true;
  FileFact& file = add_file("/srv/job/rootfs/home/db");
  file.lock_excludes = true;
  verdicts_["/srv/job/rootfs/home/db"] = FileVerdict::kShared;
  EXPECT_THAT(find(), IsEmpty());
  file.lock_is_of_process = true;
  expect_stop("is one file for both nodes, and 412 (worker) holds a lock", "release");
}

TEST_F(ContainerPreflight, ComparesFilesByTheirPathsOnTheNode) {
  verdicts_["/srv/job/rootfs/opt/worker"] = FileVerdict::kOtherContent;
  expect_stop("/srv/job/rootfs/opt/worker", "same version");
}

TEST_F(ContainerPreflight, StopsTheMoveIfTheTargetCannotRunTheContainer) {
  answer().bundle = BundleVerdict::kMissing;
  expect_stop("the bundle /srv/job of the container job is not at the target", "copy it there");
  answer().bundle = BundleVerdict::kOther;
  expect_stop("config.json of the container job differs", "copy the bundle");
  answer().bundle = BundleVerdict::kSame;
  answer().name_taken = true;
  expect_stop("the container job already exists at the target", "runc delete job");
  answer().name_taken = false;
  answer().paths_missing = {"/srv/data"};
  expect_stop("the target lacks /srv/data, which the container job needs", "create them there");
  answer().paths_missing.clear();
  answer().unified_cgroups = true;
  expect_stop("control groups have version 1 here and version 2", "unified_cgroup_hierarchy");
  answer().unified_cgroups = false;
  answer().runc_problem = "no runc found in PATH";
  expect_stop("runc does not work at the target: no runc found", "install");
}

TEST_F(ContainerPreflight, StopsTheMoveIfTheContainerIsPausedHasATerminalOrExecProcesses) {
  container().state.status = "paused";
  expect_stop("the container job is paused", "runc resume");
  container().state.status = "running";
  container().bundle.terminal = true;
  expect_stop("has a terminal", "\"terminal\": false");
  container().bundle.terminal = false;
  container().exec_processes = {500};
  expect_stop("the process 500 was started in the container job", "end it");
  container().exec_processes = {500, 501};
  expect_stop("the processes 500, 501 were started in the container job", "end them");
}

TEST_F(ContainerPreflight, RefusesAnswersThatOmitAContainer) {
  const PreflightQuestions questions = make_questions({tree_}, options_);
  ASSERT_EQ(questions.containers.size(), 1u);
  nlohmann::json answers = {{"ok", true}, {"answers", nlohmann::json::object()}};
  EXPECT_FALSE(read_answers(answers, questions));
}

TEST(CheckRoomBesides, StopsTheTreeThatDoesNotFitBesidesTheOthers) {
  NodeFacts target;
  target.store_free_bytes = 300 << 20;
  target.memory_available_bytes = 400 << 20;
  const auto sentences = [&](uint64_t others_mib, uint64_t needed_mib) {
    std::string all;
    for (const Finding& finding : check_room_besides(others_mib << 20, needed_mib << 20, target)) {
      EXPECT_EQ(finding.severity, Severity::kStops);
      all += finding.sentence + "\n";
    }
    return all;
  };
  EXPECT_EQ(sentences(0, 500), "");  // check_move() reports that
  EXPECT_EQ(sentences(200, 100), "");
  EXPECT_EQ(sentences(200, 101),
            "the process needs 101.0 MiB of memory, and the processes that move before it need "
            "200.0 MiB, but the target's image store has 300.0 MiB free\n");
  target.store_free_bytes = -1;
  EXPECT_EQ(sentences(300, 100), "");
  EXPECT_EQ(sentences(300, 101),
            "the process needs 101.0 MiB of memory, and the processes that move before it need "
            "300.0 MiB, but the target has 400.0 MiB free\n");
}

}  // namespace
}  // namespace ppmr
