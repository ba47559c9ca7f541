#include "restart_loader/criu/passed_options.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using Words = std::vector<std::string>;

TEST(PassedOptions, AcceptsTheAllowedCriuOptions) {
  EXPECT_TRUE(check_passed_options({}));
  EXPECT_TRUE(check_passed_options({"--tcp-established", "--network-lock", "skip", "--file-locks",
                                    "--ghost-limit", "64M", "--ghost-limit=64M", "--shell-job",
                                    "--manage-cgroups=ignore", "--external", "net[123]:name"}));
}

TEST(PassedOptions, RefusesOptionsThatRunProgramsOrNamePaths) {
  for (const Words& words :
       {Words{"--action-script", "/tmp/x"}, Words{"--exec-cmd"}, Words{"--root", "/"},
        Words{"--images-dir=/tmp"}, Words{"-D", "/tmp"}, Words{"--inherit-fd", "fd[1]:x"},
        Words{"--lsm-profile", "x"}, Words{"--config", "/tmp/c"}, Words{"-j"}, Words{"stray"},
        Words{"--lib", "/tmp/plugins"}, Words{"-L/tmp"}, Words{"--pidfile", "/etc/passwd"}}) {
    const Status checked = check_passed_options(words);
    ASSERT_FALSE(checked) << words[0];
    EXPECT_NE(checked.error().message.find(words[0]), std::string::npos);
  }
}

TEST(PassedOptions, RefusesMissingAndHarmfulValues) {
  EXPECT_FALSE(check_passed_options({"--ghost-limit"}));
  EXPECT_FALSE(check_passed_options({"--shell-job=yes"}));
  EXPECT_FALSE(check_passed_options({"--external", "file[/etc/shadow]:x"}));
  EXPECT_FALSE(check_passed_options({"--network-lock", "/bin/sh"}));
  EXPECT_FALSE(check_passed_options({"--timeout", "--external=x"}))
      << "CRIU could parse the value as an option";
}

}  // namespace
}  // namespace ppmr
