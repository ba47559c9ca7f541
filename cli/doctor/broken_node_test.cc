// Tests every fault that the checks can find, on a node made of files in a temporary directory.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/test_directory.h"
#include "cli/doctor/credential_checks.h"
#include "cli/doctor/criu_checks.h"
#include "cli/doctor/filter_checks.h"
#include "cli/doctor/kernel_checks.h"
#include "cli/doctor/resource_checks.h"
#include "cli/doctor/service_checks.h"
#include "cli/doctor/trial_checks.h"
#include "rdma_stream/connection/secret_file.h"
#include "tests/stream/certificates.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

class Doctor : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const fs::path path = root_ + "/" + name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }

  const TestDirectory directory_;
  const std::string root_ = directory_.path();
};

// Returns the result of the only check of this name.
Diagnosis find(const Diagnoses& all, const std::string& check) {
  const auto is_it = [&](const Diagnosis& one) { return one.check == check; };
  EXPECT_EQ(std::count_if(all.begin(), all.end(), is_it), 1) << check;
  const auto found = std::find_if(all.begin(), all.end(), is_it);
  return found == all.end() ? Diagnosis{} : *found;
}

void expect(const Diagnosis& found, Level level, const std::string& message,
            const std::string& remedy = "") {
  EXPECT_EQ(to_string(found.level), std::string(to_string(level))) << found.message;
  EXPECT_NE(found.message.find(message), std::string::npos) << found.message;
  EXPECT_NE(found.remedy.find(remedy), std::string::npos) << found.remedy;
  EXPECT_EQ(found.remedy.empty(), level == Level::kOk) << "each fault has a remedy";
}

bool all_ok(const Diagnoses& all) {
  return std::all_of(all.begin(), all.end(),
                     [](const Diagnosis& one) { return one.level == Level::kOk; });
}

TEST_F(Doctor, KernelWithEverythingIsOk) { EXPECT_TRUE(all_ok(check_kernel({}))); }

TEST_F(Doctor, NodeWithoutFilesLacksNamespacesSeccompAndFuse) {
  const auto found = check_kernel(gather_kernel_facts(root_));
  expect(find(found, "namespaces"), Level::kProblem, "mnt, net, pid, time", "CONFIG_TIME_NS");
  expect(find(found, "confinement"), Level::kWarning, "seccomp", "CONFIG_SECCOMP_FILTER");
  expect(find(found, "fuse"), Level::kProblem, "no /dev/fuse", "modprobe fuse");
}

TEST_F(Doctor, FilesOfTheNodeMakeTheseChecksOk) {
  write("proc/sys/kernel/seccomp/actions_avail", "kill");
  for (const char* name : {"mnt", "net", "pid", "time"}) {
    write(std::string("proc/self/ns/") + name, "");
  }
  write("dev/fuse", "");
  EXPECT_FALSE(gather_kernel_facts(root_).has_fusermount);
  write("usr/bin/fusermount3", "");
  KernelFacts facts = gather_kernel_facts(root_);
  facts.landlock = 0;
  const auto found = check_kernel(facts);
  for (const char* check : {"namespaces", "confinement", "fuse"}) {
    EXPECT_EQ(find(found, check).level, Level::kOk) << check;
  }
}

TEST_F(Doctor, EachMissingSystemCallIsReported) {
  const auto found = check_kernel({.userfaultfd = EPERM,
                                   .pagemap_scan = ENOTTY,
                                   .process_vm_readv = ENOSYS,
                                   .landlock = EOPNOTSUPP,
                                   .untracked_writes = "the kernel does not track"});
  expect(find(found, "userfaultfd"), Level::kProblem, "userfaultfd is not usable",
         "vm.unprivileged_userfaultfd=1");
  expect(find(found, "pagemap-scan"), Level::kWarning, "PAGEMAP_SCAN", "6.7");
  expect(find(found, "live-moves"), Level::kWarning, "stand still", "CONFIG_MEM_SOFT_DIRTY");
  expect(find(found, "process-access"), Level::kProblem, "process_vm_readv", "CROSS_MEMORY");
  expect(find(found, "confinement"), Level::kWarning, "Landlock", "lsm=landlock");
}

NodeFacts good_node() {
  NodeFacts facts;
  facts.kernel = "6.18.0";
  facts.criu_path = "/opt/criu";
  facts.criu_version = "4.2.1";
  facts.features = {kLazyFeature};
  return facts;
}

TEST_F(Doctor, WorkingCriuIsOk) {
  expect(find(check_criu(good_node(), ""), "criu"), Level::kOk,
         "CRIU 4.2.1 in /opt/criu works on the kernel 6.18.0");
}

TEST_F(Doctor, MissingBrokenAndOldCriusHaveTheirOwnRemedies) {
  expect(find(check_criu({}, "not in PATH"), "criu"), Level::kProblem, "not in PATH", "PPMR_CRIU");
  NodeFacts broken = good_node();
  broken.criu_problem = "vDSO";
  expect(find(check_criu(broken, ""), "criu"), Level::kProblem, "does not work", "/opt/criu check");
  broken.criu_version = "3.17.1";
  expect(find(check_criu(broken, ""), "criu"), Level::kProblem, "Debian 12", "4.2 or later");
}

TEST_F(Doctor, MissingRightIsNotAMissingFeature) {
  NodeFacts facts = good_node();
  facts.user = 1000;
  facts.criu_problem = "you need root";
  facts.features.clear();
  const auto found = check_criu(facts, "");
  ASSERT_EQ(found.size(), 1u);
  expect(found[0], Level::kWarning, "needs the rights of root", "as root");
  const auto kernel =
      check_kernel({.pagemap_scan = EACCES, .process_vm_readv = EPERM, .landlock = EPERM});
  expect(find(kernel, "pagemap-scan"), Level::kWarning, "must not use PAGEMAP_SCAN", "as root");
  expect(find(kernel, "process-access"), Level::kProblem, "process_vm_readv", "as root");
  expect(find(kernel, "confinement"), Level::kWarning, "must not use Landlock", "as root");
}

TEST_F(Doctor, TrialNamesTheUserTheStepAndTheMissingCapability) {
  EXPECT_EQ(judge_trial(0, {}, true).level, Level::kOk);
  const Status failed = failure(ECHILD, "`criu restore`: Error (criu/pie/restorer.c:1)");
  expect(judge_trial(0, failed, true), Level::kProblem, "program of root: `criu restore`",
         "CRIU 4.2 or later");
  expect(judge_trial(kNobody, failed, false), Level::kProblem, "an ordinary user (nobody)",
         "CAP_SYS_RESOURCE");
  expect(judge_trial(kNobody, failed, true), Level::kProblem, "restorer.c", "all capabilities");
  expect(judge_trial(0, failure(ENOEXEC, "`sleep` cannot be started"), true), Level::kWarning,
         "`sleep` cannot be started", "coreutils");
}

TEST_F(Doctor, CriuWithoutFeaturesIsAWarning) {
  NodeFacts facts = good_node();
  facts.features.clear();
  expect(find(check_criu(facts, ""), "criu-lazy"), Level::kWarning, "before all", "--eager");
}

constexpr uint64_t kPool = 64 << 20;

ResourceFacts good_resources() {
  return {.memlock_bytes = UINT64_MAX,
          .pipe_max_bytes = 16 << 20,
          .memory_available_bytes = uint64_t{8} << 30};
}

TEST_F(Doctor, LowLimitsAreReported) {
  EXPECT_TRUE(all_ok(check_resources(good_resources(), kPool)));
  ResourceFacts facts = good_resources();
  facts.memlock_bytes = 8 << 20;
  facts.pipe_max_bytes = 64 << 10;
  facts.memory_available_bytes = 1 << 20;
  facts.clock_synchronised = false;
  const auto found = check_resources(facts, kPool);
  expect(find(found, "memlock"), Level::kProblem,
         "the pool of 64.0 MiB cannot be locked: the limit is 8.0 MiB", "LimitMEMLOCK=infinity");
  expect(find(found, "pipes"), Level::kWarning, "64.0 KiB", "fs.pipe-max-size");
  expect(find(found, "memory"), Level::kWarning, "1.0 MiB", "--spill-dir");
  expect(find(found, "clock"), Level::kWarning, "not synchronised", "chrony");
  facts.may_lock_any = facts.may_exceed_pipes = true;
  EXPECT_EQ(find(check_resources(facts, kPool), "memlock").level, Level::kOk);
  EXPECT_EQ(find(check_resources(facts, kPool), "pipes").level, Level::kOk);
}

TEST_F(Doctor, LimitsOfANodeAreReadFromItsFiles) {
  write("proc/sys/fs/pipe-max-size", "65536\n");
  write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   2048 kB\n");
  const auto facts = gather_resource_facts(root_);
  EXPECT_EQ(facts.pipe_max_bytes, 65536u);
  EXPECT_EQ(facts.memory_available_bytes, 2u << 20);
}

TEST_F(Doctor, SpaceIsMeasuredWhereADirectoryWillBe) {
  const auto disk = measure_disk("records", root_ + "/not/yet/there");
  EXPECT_EQ(disk.why_unknown, "");
  EXPECT_GT(disk.free_bytes, 0u);
  ResourceFacts facts = good_resources();
  facts.disks = {
      {.what = "records", .path = "/full", .free_bytes = 1, .why_unknown = "", .why_refused = ""}};
  expect(find(check_resources(facts, kPool), "disk"), Level::kProblem, "records in /full",
         "Free space");
  facts.disks[0].why_refused = "/full: other users may write to it";
  expect(find(check_resources(facts, kPool), "disk"), Level::kProblem, "other users may write",
         "owner and mode");
}

TEST_F(Doctor, DevicePortThatIsDownIsAWarningAndAMissingDeviceIsNot) {
  EXPECT_EQ(find(check_resources(good_resources(), kPool), "rdma").level, Level::kOk);
  ResourceFacts facts = good_resources();
  facts.ports.resize(1);
  facts.ports[0].device = "mlx5_0";
  facts.ports[0].number = 1;
  facts.ports[0].why_not = "the port is down";
  expect(find(check_resources(facts, kPool), "rdma"), Level::kWarning, "mlx5_0:1",
         "Bring the port");
}

TEST_F(Doctor, KeyFileThatOthersCanReadIsAProblem) {
  const std::string path = root_ + "/key";
  const auto key = create_key_file(path);
  ASSERT_TRUE(key);
  expect(find(check_credentials({.key_file = path}, 0), "key"), Level::kOk, key_id(*key));
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  expect(find(check_credentials({.key_file = path}, 0), "key"), Level::kProblem, "mode 0644",
         "mode");
  expect(find(check_credentials({.key_file = root_ + "/none"}, 0), "key"), Level::kProblem, "none");
}

TEST_F(Doctor, CertificatesExpire) {
  TestAuthority authority;
  constexpr int kDay = 86'400;
  const auto certificate_of = [&](int days) {
    Credentials credentials;
    credentials.certificate = authority.issue({.common_name = "node",
                                               .dns_names = {"node"},
                                               .extended_key_usage = "",
                                               .valid_until_seconds = days * kDay - 3600});
    credentials.certificate.authority.clear();
    return credentials;
  };
  const auto now = ::time(nullptr);
  expect(find(check_credentials(certificate_of(100), now), "certificate"), Level::kOk,
         "expires in 99 days");
  expect(find(check_credentials(certificate_of(10), now), "certificate"), Level::kWarning,
         "expires in 9 days", "SIGHUP");
  expect(find(check_credentials(certificate_of(10), now + 12 * kDay), "certificate"),
         Level::kProblem, "expired 2 days ago", "SIGHUP");
  expect(find(check_credentials(certificate_of(10), now - kDay), "certificate"), Level::kProblem,
         "not valid yet", "clock");
  EXPECT_EQ(find(check_credentials(certificate_of(100), now), "key").level, Level::kOk);
}

TEST_F(Doctor, RevocationListsExpire) {
  TestAuthority authority;
  constexpr int kDay = 86'400;
  Credentials credentials;
  credentials.revocation_list = authority.revoke({}, 10 * kDay - 3600);
  const auto now = ::time(nullptr);
  expect(find(check_credentials(credentials, now + kDay), "certificate"), Level::kWarning,
         "expires in 8 days", "SIGHUP");
  expect(find(check_credentials(credentials, now + 12 * kDay), "certificate"), Level::kProblem,
         "revocation list", "SIGHUP");
  credentials.revocation_list = root_ + "/none";
  expect(find(check_credentials(credentials, now), "certificate"), Level::kProblem, "none");
}

TEST_F(Doctor, ConfigurationNamesKeysAndDirectories) {
  write("target.conf", "key-file = /etc/key\nspill-dir = \"/spill\"\n");
  write("source.d/out.conf", "key-file = /etc/key\n");
  write("source.d/bad.conf", "this is [ no configuration\n");
  write("protect.d/db.conf", "unit = db\nto = two\n");
  const auto found = read_configuration(root_);
  EXPECT_EQ(found.files.size(), 4u);
  ASSERT_EQ(found.credentials.size(), 1u) << "each key once";
  EXPECT_EQ(found.credentials[0].key_file, "/etc/key");
  EXPECT_EQ(found.spill_directories, std::vector<std::string>{"/spill"});
}

TEST_F(Doctor, ConfigurationNamesTheTargetsOfSources) {
  write("source.d/a.conf", "target = \"one:7440\"\nkey-file = \"/k\"\n");
  write("source.d/b.conf", "target = \"one:7440\"\nkey-file = \"/k\"\n");
  write("source.d/c.conf", "target = \"two:7440\"\nkey-file = \"/k\"\n");
  const auto targets = read_configuration(root_).targets;
  ASSERT_EQ(targets.size(), 2u);
  EXPECT_EQ(targets[0].address, "one:7440");
  EXPECT_EQ(targets[0].credentials.key_file, "/k");
  EXPECT_EQ(targets[1].address, "two:7440");
}

TEST_F(Doctor, ToConfIsCheckedAsTheOptionsOfASourceAndNeedsNoUnit) {
  write("to.conf", "tls-cert = /etc/one.crt\n");
  const auto found = read_configuration(root_);
  ASSERT_EQ(found.files, std::vector<std::string>{root_ + "/to.conf"});
  ASSERT_EQ(found.credentials.size(), 1u);
  EXPECT_EQ(found.credentials[0].certificate.certificate, "/etc/one.crt");
  const auto arguments = check_arguments(found.files[0]);
  ASSERT_GT(arguments.size(), 2u);
  EXPECT_EQ(arguments[0], "source");
  EXPECT_NE(std::find(arguments.begin(), arguments.end(), "--target"), arguments.end());
  EXPECT_TRUE(all_ok(judge_units({}, found.files)));
  EXPECT_TRUE(check_arguments("/etc/ppmr/other.conf").empty());
}

TEST_F(Doctor, ConfigurationThatADaemonRefusesIsAProblem) {
  const auto configuration = Configuration{.files = {"/etc/ppmr/target.conf"}};
  expect(find(check_configuration(configuration, root_, "/bin/false"), "configuration"),
         Level::kProblem, "target.conf is refused", "ppmr config check");
  EXPECT_TRUE(all_ok(check_configuration(configuration, root_, "/bin/true")));
  EXPECT_TRUE(all_ok(check_configuration({}, root_, "/bin/false"))) << "nothing to check";
}

TEST_F(Doctor, UnitsThatFailedOrWereNeverStartedAreReported) {
  const auto units = parse_units(
      "ppmr-target.service loaded failed failed ppmr target\n"
      "ppmr-source@out.service loaded active running ppmr source\n");
  ASSERT_EQ(units.size(), 2u);
  const auto found = judge_units(units, {"/etc/ppmr/target.conf", "/etc/ppmr/source.d/new.conf",
                                         "/etc/ppmr/protect.d/db.conf"});
  ASSERT_EQ(found.size(), 4u);
  expect(found[0], Level::kProblem, "ppmr-target.service has failed", "journalctl");
  expect(found[1], Level::kOk, "ppmr-source@out.service is active");
  expect(found[2], Level::kWarning, "ppmr-source@new.service was never started", "systemctl");
  expect(found[3], Level::kWarning, "ppmr-protect@db.service was never started", "systemctl");
  const auto loop = judge_units(
      parse_units("ppmr-source@out.service loaded activating auto-restart ppmr source\n"), {});
  ASSERT_EQ(loop.size(), 1u);
  expect(loop[0], Level::kProblem, "starts it again and again", "journalctl -u ppmr-source@out");
  EXPECT_TRUE(all_ok(check_units({}, root_))) << "no systemd";
}

TEST_F(Doctor, MountWhoseDaemonHasEndedIsAProblem) {
  const MountEntry mount{
      .mountpoint = "/mnt/out", .root = "/", .type = "fuse.ppmr", .source = root_ + "/no-socket"};
  expect(find(check_mounts({mount}), "mount"), Level::kProblem, "/mnt/out is stale",
         "fusermount3 -u -z /mnt/out");
  EXPECT_TRUE(all_ok(check_mounts({})));
}

TEST_F(Doctor, LeftFilterRulesAreAWarningWithTheirConnections) {
  EXPECT_TRUE(check_left_locks({}).empty());
  const LockedConnection moved{{std::string("\x0a\x00\x00\x01", 4), 80},
                               {std::string("\x0a\x00\x00\x02", 4), 4000}};
  const Diagnoses found = check_left_locks({moved, moved});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].level, Level::kWarning);
  EXPECT_NE(found[0].message.find("10.0.0.1:80 - 10.0.0.2:4000 and 1 more"), std::string::npos);
}

}  // namespace
}  // namespace ppmr
