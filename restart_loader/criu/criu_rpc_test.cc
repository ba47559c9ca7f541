// Compares messages byte by byte with the definitions in CRIU's rpc.proto.
#include "restart_loader/criu/criu_rpc.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using namespace std::string_literals;

// type: DUMP, opts { images_dir_fd: 7, pid: 4242, log_file: "dump.log", work_dir_fd: 300 }. ppmr's
// rpc.proto has no log_file.
const std::string kDump =
    "\x08\x01\x12\x13\x08\x07\x10\x92\x21\x52\x08"s
    "dump.log\x88\x01\xac\x02"s;

TEST(CriuRpc, RequestNamesAConfigurationFileAndSetsFewOtherFields) {
  const CriuSettings settings{.externals = {"net[7]"}, .network_lock = 2};
  // type: DUMP, opts { images_dir_fd: -1, pid: 4242, notify_scripts: true, external: ...,
  // config_file: ..., network_lock: NFTABLES }
  EXPECT_EQ(
      criu_request(CriuRequest::kDump, 4242, settings, "criu.conf"),
      "\x08\x01\x12\x28\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x92\x21\x60\x01\xaa\x02\x06"s
      "net[7]\x9a\x03\x09"s
      "criu.conf\x80\x04\x02"s);
  EXPECT_EQ(criu_request(CriuRequest::kRestore, 0, settings, "criu.conf"),
            "\x08\x02\x12\x22\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x60\x01\xaa\x02\x06"s
            "net[7]\x9a\x03\x09"s
            "criu.conf"s);
}

TEST(CriuRpc, RestoreNamesWhatItInherits) {
  CriuSettings settings;
  settings.inherited = {"socket:[7]"};
  // inherit_fd { key: "socket:[7]", fd: 4 }
  EXPECT_NE(criu_request(CriuRequest::kRestore, 0, settings, "criu.conf")
                .find("\xda\x01\x0e\x0a\x0asocket:[7]\x10\x04"s),
            std::string::npos);
}

TEST(CriuRpc, ParsesWhetherAResponseReportsSuccess) {
  EXPECT_TRUE(has_succeeded("\x08\x04\x10\x01"s));
  EXPECT_FALSE(has_succeeded("\x08\x04\x10\x00"s));
  EXPECT_TRUE(has_succeeded("\x08\x0a\x10\x01"s)) << "of a type that rpc.proto lacks";
  EXPECT_FALSE(has_succeeded("\x08\x04\x10\x01\x2a"s)) << "truncated";
  EXPECT_FALSE(has_succeeded(""));
}

TEST(CriuRpc, ParsesTheTypeAndDirectoriesOfARequest) {
  const auto request = parse_criu_request(kDump);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->type, CriuRequest::kDump);
  EXPECT_EQ(request->images_directory, 7);
  EXPECT_EQ(request->work_directory, 300);
  const auto version = parse_criu_request("\x08\x0a"s);
  ASSERT_TRUE(version);
  EXPECT_EQ(version->type, CriuRequest::kOther);
  EXPECT_EQ(version->images_directory, -1);
}

TEST(CriuRpc, ReplacingDirectoriesKeepsUnknownFields) {
  const std::string message = with_directories(kDump, 1000, 5);
  EXPECT_NE(message.find("\x52\x08"s
                         "dump.log"s),
            std::string::npos)
      << "log_file is lost";
  EXPECT_NE(message.find("\x10\x92\x21"s), std::string::npos) << "pid is lost";
  const auto request = parse_criu_request(message);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->type, CriuRequest::kDump);
  EXPECT_EQ(request->images_directory, 1000);
  EXPECT_EQ(request->work_directory, 5);
  EXPECT_EQ(parse_criu_request(with_directories(kDump, 1000, -1))->work_directory, 300);
  EXPECT_NE(with_directories(kDump + "\x38\x01"s, 7, 300).find("\x38\x01"s), std::string::npos)
      << "an unknown field of the request itself is lost";
}

TEST(CriuRpc, RemovingTheFreezerKeepsAllOtherFields) {
  // type: DUMP, opts { images_dir_fd: 7, freeze_cgroup: "/frozen", timeout: 9 }
  const std::string frozen = "\x08\x01\x12\x0f\x08\x07\xe2\x02\x07/frozen\xe8\x02\x09"s;
  EXPECT_EQ(without_freezer(frozen), "\x08\x01\x12\x05\x08\x07\xe8\x02\x09"s);
  EXPECT_EQ(parse_criu_request(without_freezer(kDump))->work_directory, 300);
}

TEST(CriuRpc, LazyPagesAreSetAndAllOtherFieldsKept) {
  // type: DUMP, opts { images_dir_fd: 7, lazy_pages: false or true, a field that ppmr does not
  // know: 9 }
  const std::string eager = "\x08\x01\x12\x08\x08\x07\x80\x03\x00\xe8\x02\x09"s;
  const std::string lazy = "\x08\x01\x12\x08\x08\x07\x80\x03\x01\xe8\x02\x09"s;
  EXPECT_EQ(with_lazy_pages(eager), lazy);
  EXPECT_EQ(with_lazy_pages(lazy), lazy);
  EXPECT_NE(with_lazy_pages(kDump).find("dump.log"), std::string::npos) << "log_file is lost";
  EXPECT_EQ(parse_criu_request(with_lazy_pages(kDump))->work_directory, 300);
  EXPECT_EQ(with_lazy_pages("\x12\x7f"s), "\x12\x7f"s) << "not a request: stays";
}

TEST(CriuRpc, ParsesTheScriptNameAndPidOfANotification) {
  // type: NOTIFY, success: true, notify { script: "post-restore", pid: 3001 }
  const auto restored = parse_criu_notification(
      "\x08\x06\x10\x01\x2a\x11\x0a\x0c"s
      "post-restore\x10\xb9\x17"s);
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->script, "post-restore");
  EXPECT_EQ(restored->pid, 3001);
  // type: DUMP, success: true, dump {}
  EXPECT_FALSE(parse_criu_notification("\x08\x01\x10\x01\x1a\x00"s));
}

TEST(CriuRpc, AnswerToANotificationSaysWhetherCriuMayContinue) {
  EXPECT_EQ(criu_notification_answer(true), "\x08\x06\x18\x01"s);
  EXPECT_EQ(criu_notification_answer(false), "\x08\x06\x18\x00"s);
}

TEST(CriuRpc, TruncatedMessageIsRefused) {
  for (size_t size = 1; size < kDump.size(); ++size) {
    if (size == 2) continue;  // a complete request without options
    EXPECT_FALSE(parse_criu_request(kDump.substr(0, size))) << size;
  }
  EXPECT_FALSE(parse_criu_request(""));
  EXPECT_FALSE(parse_criu_request("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s));
  EXPECT_FALSE(parse_criu_notification("\x08\x06\x10\x01\x2a\x7f\x0a\x0c"s));
}

}  // namespace
}  // namespace ppmr
