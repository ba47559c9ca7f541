#include "preflight/policy/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;
using testing::HasSubstr;

RestartPolicy parsed(const char* text) {
  auto policy = parse_restart_policy(json::parse(text));
  EXPECT_TRUE(policy) << policy.error().message;
  return policy.value_or(RestartPolicy{});
}

std::string refused(const char* text) {
  const auto policy = parse_restart_policy(json::parse(text));
  EXPECT_FALSE(policy) << text;
  return policy ? "" : policy.error().message;
}

TEST(RestartPolicy, WithoutAFileRootIsNotAccepted) {
  const RestartPolicy policy;
  EXPECT_FALSE(policy.accepts_root());
  EXPECT_TRUE(includes(policy.users, 1000));
  EXPECT_TRUE(includes(policy.executables, "/usr/bin/sleep"));
}

TEST(RestartPolicy, AcceptsUsersByNameNumberAndRange) {
  const RestartPolicy policy = parsed(R"({"users": ["root", 7, "1000-1999"]})");
  EXPECT_TRUE(policy.accepts_root());
  for (uint32_t id : {7, 1000, 1500, 1999}) EXPECT_TRUE(includes(policy.users, id)) << id;
  for (uint32_t id : {1, 8, 999, 2000}) EXPECT_FALSE(includes(policy.users, id)) << id;
}

TEST(RestartPolicy, AnEmptyListOfUsersAcceptsNobody) {
  EXPECT_FALSE(includes(parsed(R"({"users": []})").users, 1000));
}

TEST(RestartPolicy, PathWithASlashAtItsEndStandsForEverythingBelow) {
  const RestartPolicy policy = parsed(R"({"executables": ["/opt/app/", "/usr/bin/env"]})");
  EXPECT_TRUE(includes(policy.executables, "/opt/app/bin/x"));
  EXPECT_TRUE(includes(policy.executables, "/usr/bin/env"));
  for (const char* path : {"/opt/app", "/opt/application", "/usr/bin/env2", "opt/app/x",
                           "/opt/app/../../bin/sh", "/opt/app/.."}) {
    EXPECT_FALSE(includes(policy.executables, path)) << path;
  }
}

TEST(RestartPolicy, RefusesUnknownKeysAndInvalidValues) {
  EXPECT_THAT(refused(R"(["root"])"), HasSubstr("JSON object"));
  EXPECT_THAT(refused(R"({"user": ["root"]})"), HasSubstr("unknown key"));
  EXPECT_THAT(refused(R"({"users": "root"})"), HasSubstr("not a list"));
  EXPECT_THAT(refused(R"({"users": ["no such user"]})"), HasSubstr("no such user"));
  EXPECT_THAT(refused(R"({"users": ["9-1"]})"), HasSubstr("9-1"));
  EXPECT_THAT(refused(R"({"users": [-1]})"), HasSubstr("-1"));
  EXPECT_THAT(refused(R"({"users": [4294967296]})"), HasSubstr("4294967296"));
  EXPECT_THAT(refused(R"({"executables": ["bin/sh"]})"), HasSubstr("absolute"));
  EXPECT_THAT(refused(R"({"capabilities": ["CAP_KILL"]})"), HasSubstr("kill"));
  EXPECT_THAT(refused(R"({"namespaces": ["network"]})"), HasSubstr("net"));
  EXPECT_THAT(refused(R"({"resources": ["sockets"]})"), HasSubstr("raw-sockets"));
  EXPECT_THAT(refused(R"({"criu_options": ["-v"]})"), HasSubstr("long option"));
  EXPECT_THAT(refused(R"({"everything": 1})"), HasSubstr("everything"));
}

TEST(RestartPolicy, TheRecordKeepsEveryKey) {
  const json all = json::parse(R"({"file": "/etc/p", "everything": false, "users": ["5-9"],
      "groups": ["3-3"], "executables": ["/x"], "roots": ["/r"], "files": ["/f/"],
      "bundles": ["/b"], "capabilities": ["kill"], "namespaces": ["net"],
      "resources": ["inotify"], "criu_options": ["--manage-cgroups"]})");
  const auto policy = parse_restart_policy(all);
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(to_json(*policy), all);
}

TEST(RestartPolicy, RefusesAFileThatOthersCanChange) {
  const std::string path = testing::TempDir() + "/policy.json";
  std::ofstream(path) << R"({"users": ["root"], "file": "/other"})";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const auto policy = read_restart_policy(path);
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(policy->file, path);
  ASSERT_EQ(chmod(path.c_str(), 0664), 0);
  const auto open_to_group = read_restart_policy(path);
  ASSERT_FALSE(open_to_group);
  EXPECT_THAT(open_to_group.error().message, HasSubstr("chmod go-w " + path));
  EXPECT_FALSE(read_restart_policy("/dev/null"));
  EXPECT_FALSE(read_restart_policy("/nonexistent"));
}

}  // namespace
}  // namespace ppmr
