#include "restart_loader/containers/runc.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(Runc, ParsesTheStateOfAContainer) {
  const auto state = parse_container_state(R"({
    "ociVersion": "1.0.2-dev", "id": "job", "pid": 4242, "status": "running",
    "bundle": "/srv/job", "rootfs": "/srv/job/rootfs", "created": "2026-01-02T03:04:05.678Z",
    "owner": ""})");
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->name, "job");
  EXPECT_EQ(state->pid, 4242);
  EXPECT_EQ(state->status, "running");
  EXPECT_EQ(state->bundle, "/srv/job");
  EXPECT_EQ(state->root_file_system, "/srv/job/rootfs");
  EXPECT_FALSE(parse_container_state("time=... level=error"));
  EXPECT_FALSE(parse_container_state(R"({"id": "job", "pid": "many"})"));
}

TEST(Runc, RefusesContainerNamesThatLookLikePathsOrOptions) {
  for (const char* name : {"job", "a.b_c-d+e", "0"}) EXPECT_TRUE(is_container_name(name)) << name;
  for (const char* name : {"", ".", "..", "a/b", "../x", "--root", "a b", "a\nb"}) {
    EXPECT_FALSE(is_container_name(name)) << name;
  }
}

TEST(Runc, TranslatesCriuOptionsToRuncOptions) {
  const std::vector<std::string> options = {"--tcp-established", "--ghost-limit=64M",
                                            "--manage-cgroups=ignore", "--tcp-close"};
  const auto words = runc_options(options);
  ASSERT_TRUE(words);
  EXPECT_EQ(*words,
            (std::vector<std::string>{"--tcp-established", "--manage-cgroups-mode", "ignore"}));
  EXPECT_EQ(runc_configuration(options), "ghost-limit=64M\ntcp-close\n");
  for (const std::vector<std::string>& refused : {std::vector<std::string>{"--ghost-limit", "64M"},
                                                  {"--manage-cgroups"},
                                                  {"--external", "x"}}) {
    const auto checked = runc_options(refused);
    ASSERT_FALSE(checked) << refused[0];
    EXPECT_NE(checked.error().message.find(refused[0]), std::string::npos);
  }
}

TEST(Runc, CommandPrependsTheWorkDirectoryToThePathVariable) {
  setenv("PATH", "/usr/sbin:/usr/bin", 1);
  const auto runc = Runc::find();
  if (!runc) GTEST_SKIP() << "NOT TESTED: runc; " << runc.error().message;
  const auto argv = runc->command("/work", {"checkpoint", "job"});
  EXPECT_EQ(argv, (std::vector<std::string>{"env", "PATH=/work:/usr/sbin:/usr/bin", runc->path(),
                                            "checkpoint", "job"}));
}

}  // namespace
}  // namespace ppmr
