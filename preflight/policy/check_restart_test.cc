// Tests with hand-made images that a peer could send.
#include "preflight/policy/check_restart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/tree_images.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Magic numbers, from criu/include/magic.h.
constexpr uint32_t kFiles = 0x56303138, kCore = 0x55053847, kIds = 0x54432030, kMm = 0x57492820,
                   kFs = 0x51403912, kFdinfo = 0x56213732, kGhost = 0x52583605, kRemap = 0x59133954,
                   kQueues = 0x56264026, kMounts = 0x55563928;
constexpr uint32_t kProgram = 1, kDirectory = 2, kRoot = 3;  // ids of files

// A process of a user without any privileges. Each test adds the object that the policy must judge.
class CheckRestart : public testing::Test {
 protected:
  CheckRestart() {
    fs::remove_all(images_);
    fs::create_directories(images_);
    for (tree_images::ids_entry* ids : {&node_, &ids_}) {
      ids->set_pid_ns_id(1);
      ids->set_net_ns_id(2);
      ids->set_mnt_ns_id(3);
      ids->set_user_ns_id(4);
    }
    for (uint32_t id : {kProgram, kDirectory, kRoot}) {
      add_file(id, id == kProgram ? "/bin/true" : "/", O_RDONLY);
    }
    set_user(user_);
    core_.mutable_tc()->set_task_state(1);
    memory_.set_exe_file_id(kProgram);
    directories_.set_cwd_id(kDirectory);
    directories_.set_root_id(kRoot);
  }
  ~CheckRestart() override { fs::remove_all(images_); }

  tree_images::creds_entry& credentials() { return *core_.mutable_thread_core()->mutable_creds(); }
  void set_user(uint32_t id) {
    auto& creds = credentials();
    creds.set_uid(id), creds.set_euid(id), creds.set_suid(id), creds.set_fsuid(id);
    creds.set_gid(id), creds.set_egid(id), creds.set_sgid(id), creds.set_fsgid(id);
    creds.set_secbits(0);
  }
  static tree_images::fown_entry nobody() {
    tree_images::fown_entry owner;
    owner.set_uid(0), owner.set_euid(0), owner.set_pid(0);
    return owner;
  }
  tree_images::file_entry& add(uint32_t id, uint32_t type) {
    tree_images::file_entry& file = files_.emplace_back();
    file.set_type(type);
    file.set_id(id);
    return file;
  }
  tree_images::reg_file_entry& add_file(uint32_t id, const std::string& path, uint32_t flags) {
    tree_images::reg_file_entry& file = *add(id, 1).mutable_reg();
    file.set_id(id);
    file.set_flags(flags);
    file.set_name(path);
    *file.mutable_fown() = nobody();
    return file;
  }
  // Adds a file that has a descriptor.
  void open_file(const std::string& path, uint32_t flags) {
    add_file(77, path, flags);
    tree_images::fdinfo_entry descriptor;
    descriptor.set_id(77);
    write("fdinfo-2.img", kFdinfo, {&descriptor});
  }
  void write(const std::string& name, uint32_t magic,
             const std::vector<const google::protobuf::MessageLite*>& messages) {
    ImageWriter image(magic);
    for (const auto* message : messages) image.add(*message);
    ASSERT_TRUE(image.write(images_ / name));
  }
  void write_all() {
    tree_images::inventory_entry inventory;
    *inventory.mutable_root_ids() = node_;
    write("inventory.img", 0, {&inventory});
    const std::string bytes = read("inventory.img");
    overwrite("inventory.img", std::string("\x16\x31\x31\x58") + bytes.substr(8));
    write("core-9.img", kCore, {&core_});
    write("ids-9.img", kIds, {&ids_});
    write("mm-9.img", kMm, {&memory_});
    write("fs-9.img", kFs, {&directories_});
    std::vector<const google::protobuf::MessageLite*> files;
    for (const auto& file : files_) files.push_back(&file);
    write("files.img", kFiles, files);
  }
  Error judge(const char* policy = "{}") {
    write_all();
    return judge_written(policy);
  }
  Error judge_written(const char* policy = "{}") {
    const auto parsed = parse_restart_policy(json::parse(policy));
    EXPECT_TRUE(parsed) << parsed.error().message;
    const Status status = check_restart(*parsed, tree_);
    return status ? Error{0, ""} : status.error();
  }
  std::string refusal(const char* policy = "{}") {
    const Error error = judge(policy);
    EXPECT_EQ(error.errno_value, EPERM) << error.message;
    return error.message;
  }
  // Returns the error for images that were changed after write_all().
  std::string damage() {
    const Error error = judge_written();
    EXPECT_EQ(error.errno_value, EPROTO) << error.message;
    return error.message;
  }
  std::string read(const std::string& name) { return read_whole_file(images_ / name).value(); }
  void overwrite(const std::string& name, const std::string& bytes) {
    std::ofstream(images_ / name, std::ios::binary) << bytes;
  }

  const uint32_t user_ = geteuid() == 0 ? 54321 : geteuid();
  const fs::path images_ = fs::path(testing::TempDir()) / "check_restart";
  TreeToRestore tree_{.images = images_, .small_images = nullptr, .bundle = "", .criu_options = {}};
  tree_images::ids_entry node_, ids_;
  tree_images::core_entry core_;
  tree_images::mm_entry memory_;
  tree_images::fs_entry directories_;
  std::deque<tree_images::file_entry> files_;
};

TEST_F(CheckRestart, AcceptsAProcessWithoutPrivileges) { EXPECT_EQ(judge().message, ""); }

// check_restart() judges the images that CRIU reads. CRIU reads the bundle, even if the checkpoint
// changes.
TEST_F(CheckRestart, SmallImagesAreThoseOfTheBundle) {
  write_all();
  std::vector<BundleWriter::File> files;
  for (const auto& entry : fs::directory_iterator(images_)) {
    files.push_back({entry.path().filename(), entry.file_size(), true});
  }
  auto writer = BundleWriter::create(files, /*is_flat=*/true);
  ASSERT_TRUE(writer);
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string bytes = read(files[i].name);
    std::memcpy(writer->bytes_of(i).data(), bytes.data(), bytes.size());
  }
  const auto memfd = writer->finish();
  const auto bundle = ImageBundle::open(*memfd);
  ASSERT_TRUE(bundle);
  tree_.small_images = &*bundle;
  overwrite("core-9.img", "damaged");
  overwrite("unknown-9.img", "");
  EXPECT_EQ(judge_written().message, "");
  tree_.small_images = nullptr;
  EXPECT_EQ(judge_written().errno_value, EPROTO);
  fs::remove(images_ / "unknown-9.img");
}

// ---- Users, groups, capabilities ----

TEST_F(CheckRestart, RefusesRootAndNamesTheRemedy) {
  set_user(0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("core-9.img runs as root"),
                               HasSubstr("--allow-root-restart"), HasSubstr("\"root\"")));
  EXPECT_THAT(refusal(R"({"file": "/etc/p.json", "users": [7]})"),
              HasSubstr("add \"root\" to \"users\" in /etc/p.json"));
  EXPECT_EQ(judge(R"({"users": ["root"]})").message, "");
  EXPECT_EQ(judge(R"({"everything": true})").message, "");
}

TEST_F(CheckRestart, RefusesEachKindOfRoot) {
  using Creds = tree_images::creds_entry;
  for (auto set : {&Creds::set_uid, &Creds::set_euid, &Creds::set_suid, &Creds::set_fsuid}) {
    set_user(user_);
    (credentials().*set)(0);
    EXPECT_THAT(refusal(), HasSubstr("root"));
  }
}

TEST_F(CheckRestart, RefusesAThreadOfRoot) {
  tree_images::core_entry thread;
  thread.mutable_thread_core()->mutable_creds()->CopyFrom(credentials());
  thread.mutable_thread_core()->mutable_creds()->set_euid(0);
  write("core-10.img", kCore, {&thread});
  EXPECT_THAT(refusal(), HasSubstr("core-10.img runs as root"));
}

TEST_F(CheckRestart, RefusesATaskWithoutCredentialsUnlessItIsDead) {
  write("core-10.img", kCore, {&core_});
  core_.clear_thread_core();
  EXPECT_EQ(judge().errno_value, EPROTO);
  core_.mutable_tc()->set_task_state(2);
  EXPECT_EQ(judge().message, "");
}

TEST_F(CheckRestart, RefusesUsersThatAreNotListed) {
  EXPECT_THAT(refusal(R"({"users": [7]})"), HasSubstr(fmt::format("user {}", user_)));
}

TEST_F(CheckRestart, RefusesAGroupThatTheUserDoesNotHave) {
  credentials().add_groups(6);  // 6 is the group "disk"
  EXPECT_THAT(refusal(), HasSubstr("group 6"));
  EXPECT_EQ(judge(R"({"groups": [6]})").message.find("group"), std::string::npos);
  credentials().clear_groups();
  credentials().set_egid(0);
  EXPECT_THAT(refusal(), HasSubstr("group 0"));
}

TEST_F(CheckRestart, RefusesCapabilitiesInEverySet) {
  using Creds = tree_images::creds_entry;
  for (auto add :
       {&Creds::add_cap_prm, &Creds::add_cap_eff, &Creds::add_cap_inh, &Creds::add_cap_amb}) {
    credentials().clear_cap_prm(), credentials().clear_cap_eff();
    credentials().clear_cap_inh(), credentials().clear_cap_amb();
    (credentials().*add)(1 << 10);
    EXPECT_THAT(refusal(), HasSubstr("net_bind_service"));
    EXPECT_EQ(judge(R"({"capabilities": ["net_bind_service"]})").message, "");
  }
  (credentials()).add_cap_prm(0);
  (credentials()).add_cap_prm(1 << 7);  // capability 39: bpf
  EXPECT_THAT(refusal(R"({"capabilities": ["net_bind_service"]})"), HasSubstr("bpf"));
}

TEST_F(CheckRestart, RefusesSecureBitsAndRealTime) {
  credentials().set_secbits(16);
  EXPECT_THAT(refusal(), HasSubstr("setpcap"));
  credentials().set_secbits(0);
  core_.mutable_thread_core()->set_sched_policy(1);
  EXPECT_THAT(refusal(), HasSubstr("real-time"));
}

// ---- Programs, root directories, namespaces, options ----

TEST_F(CheckRestart, RefusesProgramsThatAreNotListed) {
  EXPECT_THAT(refusal(R"({"executables": ["/opt/"]})"), HasSubstr("runs \"/bin/true\""));
  EXPECT_EQ(judge(R"({"executables": ["/bin/"]})").message, "");
  set_user(0);
  EXPECT_THAT(refusal(R"({"users": ["root"], "executables": ["/opt/"]})"), HasSubstr("/bin/true"));
}

TEST_F(CheckRestart, RefusesAnotherRootDirectory) {
  files_[2].mutable_reg()->set_name("/srv/jail");
  EXPECT_THAT(refusal(), HasSubstr("root directory \"/srv/jail\""));
  EXPECT_EQ(judge(R"({"roots": ["/srv/"]})").message, "");
}

TEST_F(CheckRestart, RefusesNamespacesOfItsOwn) {
  ids_.set_net_ns_id(12);
  EXPECT_THAT(refusal(), HasSubstr("net namespace"));
  EXPECT_EQ(judge(R"({"namespaces": ["net"]})").message, "");
  ids_.set_mnt_ns_id(13);
  EXPECT_THAT(refusal(R"({"namespaces": ["net"]})"), HasSubstr("mnt namespace"));
  EXPECT_THAT(refusal(R"({"namespaces": ["net", "mnt"]})"), HasSubstr("cannot be checked"));
}

TEST_F(CheckRestart, RefusesNamespacesThatOnlyTheCoreImageHas) {
  core_.mutable_ids()->CopyFrom(ids_);
  core_.mutable_ids()->set_user_ns_id(40);
  EXPECT_THAT(refusal(), HasSubstr("user namespace"));
}

TEST_F(CheckRestart, RefusesOptionsOfCriuWithConsequences) {
  tree_.criu_options = {"--tcp-established", "--ghost-limit", "1M", "--manage-cgroups=full"};
  EXPECT_THAT(refusal(), HasSubstr("--manage-cgroups"));
  EXPECT_EQ(judge(R"({"criu_options": ["--manage-cgroups"]})").message, "");
}

// ---- Images and files ----

TEST_F(CheckRestart, RefusesUnknownImages) {
  for (const char* name : {"creds-9.img", "reg-files.img", "apparmor.img", "tunfile.img", "x"}) {
    overwrite(name, "");
    EXPECT_THAT(refusal(), HasSubstr(name));
    fs::remove(images_ / name);
  }
  overwrite("iptables-9.img", "");
  EXPECT_THAT(refusal(), HasSubstr("iptables-9.img"));
}

TEST_F(CheckRestart, RefusesFilesThatTheUserCannotOpen) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  open_file("/etc/shadow", O_RDONLY);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("\"/etc/shadow\""), HasSubstr("not read")));
  EXPECT_EQ(judge(R"({"files": ["/etc/shadow"]})").message, "");
  files_.pop_back();
  open_file("/etc/passwd", O_RDWR | O_APPEND);
  EXPECT_THAT(refusal(), HasSubstr("not write"));
  files_.back().mutable_reg()->set_flags(O_RDONLY);
  EXPECT_EQ(judge().message, "");
  files_.back().mutable_reg()->set_name("/nonexistent/file");  // CRIU fails to open this file
  EXPECT_EQ(judge().message, "");
}

TEST_F(CheckRestart, RefusesFlagsThatChangeFiles) {
  for (uint32_t flag : {O_CREAT, O_TRUNC, O_EXCL, O_TMPFILE & ~O_DIRECTORY}) {
    open_file("/dev/null", O_RDWR | flag);
    EXPECT_THAT(refusal(), HasSubstr("with the flags"));
    files_.pop_back();
  }
}

TEST_F(CheckRestart, RefusesAMappingWithMoreRightsThanItsFile) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  add_file(80, "/etc/passwd", O_RDONLY);
  auto& area = *memory_.add_vmas();
  area.set_shmid(80), area.set_status((1 << 7) | 1), area.set_flags(MAP_SHARED);
  area.set_prot(PROT_READ);
  EXPECT_EQ(judge().message, "");
  area.set_prot(PROT_READ | PROT_WRITE);
  EXPECT_THAT(refusal(), HasSubstr("/etc/passwd"));
  area.set_prot(PROT_READ);
  area.set_fdflags(O_RDWR);
  EXPECT_THAT(refusal(), HasSubstr("/etc/passwd"));
  area.set_status((1 << 10) | 1);
  EXPECT_THAT(refusal(), HasSubstr("System V"));
}

TEST_F(CheckRestart, RefusesKindsOfFilesWithoutPermission) {
  add(90, 8);
  EXPECT_THAT(refusal(), HasSubstr("inotify"));
  EXPECT_EQ(judge(R"({"resources": ["inotify"]})").message, "");
  files_.back().set_type(999);
  EXPECT_THAT(refusal(), HasSubstr("type 999"));
}

TEST_F(CheckRestart, RefusesSignalsAsAnotherUser) {
  auto& owner = *add(91, 2).mutable_pipe()->mutable_fown();
  owner.set_uid(0), owner.set_euid(0), owner.set_pid(1);
  EXPECT_THAT(refusal(), HasSubstr("signals"));
  owner.set_uid(user_), owner.set_euid(user_);
  EXPECT_EQ(judge().message, "");
}

TEST_F(CheckRestart, RefusesSocketsThatTheUserCouldNotMake) {
  auto& internet = *add(92, 4).mutable_isk();
  internet.set_type(1), internet.set_src_port(80);
  *internet.mutable_fown() = nobody();
  internet.mutable_opts();
  const bool is_privileged = [] {
    uint32_t first = 1024;
    std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first;
    return first > 80;
  }();
  if (is_privileged) {
    EXPECT_THAT(refusal(), HasSubstr("port 80"));
  }
  internet.set_src_port(61234);
  EXPECT_EQ(judge().message, "");
  internet.set_type(3);
  EXPECT_THAT(refusal(), HasSubstr("raw"));
  files_.pop_back();
  auto& unix_socket = *add(93, 5).mutable_usk();
  unix_socket.set_uflags(1);
  *unix_socket.mutable_fown() = nobody();
  unix_socket.mutable_opts();
  unix_socket.set_name("");
  EXPECT_THAT(refusal(), HasSubstr("outside"));
  unix_socket.set_uflags(0);
  EXPECT_EQ(judge().message, "");
  unix_socket.set_name(std::string("\0abstract", 9));
  EXPECT_EQ(judge().message, "");
  if (geteuid() != 0) return;
  unix_socket.set_name("/etc/socket");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("\"/etc\""), HasSubstr("not write")));
}

TEST_F(CheckRestart, RefusesGhostFilesOfOthersAndDevices) {
  tree_images::ghost_file_entry ghost;
  ghost.set_uid(user_), ghost.set_gid(user_), ghost.set_mode(S_IFREG | 0600);
  write("ghost-file-1.img", kGhost, {&ghost});
  EXPECT_EQ(judge().message, "");
  ghost.set_mode(S_IFBLK | 0600);
  write("ghost-file-1.img", kGhost, {&ghost});
  EXPECT_THAT(refusal(), HasSubstr("ghost-file-1.img"));
  ghost.set_mode(S_IFREG | 04755), ghost.set_uid(0);
  write("ghost-file-1.img", kGhost, {&ghost});
  EXPECT_THAT(refusal(), HasSubstr("ghost-file-1.img"));
  fs::remove(images_ / "ghost-file-1.img");
  if (geteuid() != 0) return;
  add_file(94, "/etc/cron.d/x", O_RDWR);
  tree_images::remap_file_path_entry remap;
  remap.set_orig_id(94), remap.set_remap_id(1), remap.set_remap_type(1);
  write("remap-fpath.img", kRemap, {&remap});
  EXPECT_THAT(refusal(), HasSubstr("\"/etc/cron.d\""));
}

TEST_F(CheckRestart, RefusesDescriptorsInFlight) {
  tree_images::sk_packet_entry packet;
  packet.set_length(3);
  ImageWriter plain(kQueues);
  plain.add(packet);
  ASSERT_TRUE(plain.write(images_ / "sk-queues.img"));
  std::ofstream(images_ / "sk-queues.img", std::ios::app) << "abc";
  EXPECT_EQ(judge().message, "");
  packet.add_scm()->add_rights(1);
  write("sk-queues.img", kQueues, {&packet});
  std::ofstream(images_ / "sk-queues.img", std::ios::app) << "abc";
  EXPECT_THAT(refusal(), HasSubstr("socket"));
}

// ---- Containers ----

class CheckContainer : public CheckRestart {
 protected:
  CheckContainer() {
    set_user(0);
    credentials().add_cap_prm(1 << 5);
    ids_.set_pid_ns_id(11), ids_.set_mnt_ns_id(12);
    fs::create_directories(bundle_);
    std::ofstream(bundle_ / "config.json")
        << R"({"process": {"capabilities": {"bounding": ["CAP_KILL"]}},
               "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"},
                                        {"type": "network", "path": "/run/netns/x"}]}})";
    fs::permissions(bundle_ / "config.json", fs::perms(0644));
    tree_.bundle = bundle_;
    policy_ = fmt::format(R"({{"bundles": ["{}"]}})", bundle_.string());
  }
  ~CheckContainer() override { fs::remove_all(bundle_); }

  const fs::path bundle_ = fs::path(testing::TempDir()) / "check_restart_bundle";
  std::string policy_;
};

TEST_F(CheckContainer, AcceptsAListedBundle) {
  if (geteuid() != 0) GTEST_SKIP() << "the bundle must belong to root";
  EXPECT_THAT(refusal(), HasSubstr("bundle"));
  EXPECT_EQ(judge(policy_.c_str()).message, "");
}

TEST_F(CheckContainer, RefusesMoreThanTheBundleAllows) {
  if (geteuid() != 0) GTEST_SKIP() << "the bundle must belong to root";
  credentials().set_cap_prm(0, 1 << 21);
  EXPECT_THAT(refusal(policy_.c_str()), HasSubstr("sys_admin"));
  credentials().set_cap_prm(0, 0);
  ids_.set_mnt_ns_id(3);
  EXPECT_THAT(refusal(policy_.c_str()), HasSubstr("lacks the mnt namespace"));
  ids_.set_mnt_ns_id(12);
  tree_images::mnt_entry mount;
  mount.set_fstype(5), mount.set_mountpoint("./tmp");
  write("mountpoints-12.img", kMounts, {&mount});
  EXPECT_EQ(judge(policy_.c_str()).message, "");
  mount.set_fstype(16), mount.set_mountpoint("./disk");
  write("mountpoints-12.img", kMounts, {&mount});
  EXPECT_THAT(refusal(policy_.c_str()), HasSubstr("./disk"));
}

TEST_F(CheckContainer, RefusesABundleThatOthersCanChange) {
  if (geteuid() != 0) GTEST_SKIP() << "the bundle must belong to root";
  fs::permissions(bundle_ / "config.json", fs::perms(0666));
  EXPECT_THAT(refusal(policy_.c_str()), HasSubstr("chmod go-w"));
}

// ---- Images that CRIU has not written ----

TEST_F(CheckRestart, RefusesEveryImageThatIsCutOff) {
  for (const char* name : {"core-9.img", "mm-9.img", "fs-9.img", "files.img", "inventory.img"}) {
    write_all();
    const std::string whole = read(name);
    for (size_t length = 0; length < whole.size(); ++length) {
      overwrite(name, whole.substr(0, length));
      const Error error = judge_written();
      EXPECT_NE(error.errno_value, 0) << name << " of " << length << " bytes";
    }
  }
}

TEST_F(CheckRestart, RefusesAWrongMagicNumberAndAHugeLength) {
  write_all();
  std::string bytes = read("core-9.img");
  const std::string good = bytes;
  bytes[5] ^= 1;
  overwrite("core-9.img", bytes);
  EXPECT_THAT(damage(), HasSubstr("magic"));
  for (unsigned char high : {0x7f, 0x80, 0xff}) {
    bytes = good;
    bytes[11] = static_cast<char>(high);
    overwrite("core-9.img", bytes);
    EXPECT_THAT(damage(), HasSubstr("cut off"));
  }
}

TEST_F(CheckRestart, RefusesAnImageThatIsTooLarge) {
  write_all();
  ASSERT_EQ(truncate((images_ / "core-9.img").c_str(), 65 << 20), 0);
  EXPECT_EQ(judge_written().errno_value, E2BIG);
}

// If a field is there twice, one reader may take the first and another the last.
TEST_F(CheckRestart, RefusesAFieldThatIsThereTwice) {
  write_all();
  const std::string once = core_.SerializeAsString();
  tree_images::core_entry root;
  root.mutable_thread_core()->mutable_creds()->CopyFrom(credentials());
  root.mutable_thread_core()->mutable_creds()->set_uid(0);
  const std::string twice = root.SerializeAsString() + once;
  std::string bytes = read("core-9.img").substr(0, 8);
  const auto length = static_cast<uint32_t>(twice.size());
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  overwrite("core-9.img", bytes + twice);
  EXPECT_THAT(damage(), HasSubstr("not as CRIU writes it"));
}

TEST_F(CheckRestart, RefusesTwoFilesWithOneId) {
  add_file(kProgram, "/bin/sh", O_RDONLY);
  EXPECT_EQ(judge().errno_value, EPROTO);
}

TEST_F(CheckRestart, RefusesAProgramThatIsNoFile) {
  memory_.set_exe_file_id(1234);
  EXPECT_EQ(judge().errno_value, EPROTO);
  memory_.set_exe_file_id(kProgram);
  files_[0].mutable_reg()->set_name("bin/true");
  EXPECT_EQ(judge().errno_value, EPROTO);
  files_[0].mutable_reg()->set_name(std::string("/bin/true\0x", 11));
  EXPECT_EQ(judge().errno_value, EPROTO);
}

TEST_F(CheckRestart, RefusesImagesWithoutAnInventory) {
  write_all();
  fs::remove(images_ / "inventory.img");
  EXPECT_THAT(damage(), HasSubstr("inventory"));
}

TEST_F(CheckRestart, EscapesQuotedNames) {
  open_file("/tmp/\n\x1b[2J", O_RDWR | O_CREAT);
  EXPECT_THAT(refusal(), HasSubstr("/tmp/\\n\\u001b[2J"));
}

}  // namespace
}  // namespace ppmr
