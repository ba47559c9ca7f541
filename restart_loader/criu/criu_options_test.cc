#include "restart_loader/criu/criu_options.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(CriuOptions, AreRecognisedInShortAndLongForm) {
  for (const std::vector<std::string>& options : {std::vector<std::string>{"-v4", "-o", "a.log"},
                                                  {"-vvvv", "-oa.log"},
                                                  {"--verbosity=4", "--log-file=a.log"},
                                                  {"--verbosity", "4", "--log-file", "a.log"}}) {
    const CriuOptions found = read_criu_options(options);
    EXPECT_TRUE(found.verbosity) << options[0];
    EXPECT_EQ(found.log_file, "a.log") << options[0];
    EXPECT_FALSE(found.pid_file);
  }
  EXPECT_EQ(read_criu_options({"--pidfile", "p"}).pid_file, "p");
  EXPECT_EQ(read_criu_options({"--pidfile=p"}).pid_file, "p");
}

TEST(CriuOptions, BecomeConfigurationLinesOrFieldsOfTheRpc) {
  const auto settings =
      criu_settings({"--tcp-established", "--external", "mnt[/a b]:\"x", "--ghost-limit", "4M",
                     "--manage-cgroups=soft", "--network-lock", "nftables", "--external=net[7]:y",
                     "--cpu-cap", "--lazy-pages"});
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->configuration,
            "tcp-established\nghost-limit=4M\nmanage-cgroups=soft\ncpu-cap\nlazy-pages\n");
  EXPECT_EQ(settings->externals, (std::vector<std::string>{"mnt[/a b]:\"x", "net[7]:y"}));
  EXPECT_EQ(settings->network_lock, 2u);
}

TEST(CriuOptions, AreRefusedIfTheRpcCannotExpressThem) {
  for (const std::vector<std::string>& options : {std::vector<std::string>{"-v4"},
                                                  {"--network-lock", "tables"},
                                                  {"--network-lock"},
                                                  {"--pidfile", "with blanks"},
                                                  {"--pidfile=two\nlines"}}) {
    EXPECT_FALSE(criu_settings(options)) << options[0];
  }
}

TEST(CriuOptions, DoNotIncludeValuesAndCommandsThatLookLikeOptions) {
  const CriuOptions found = read_criu_options(
      {"--shell-job", "--root", "/x", "--exec-cmd", "--", "cat", "-v", "-o", "y"});
  EXPECT_FALSE(found.verbosity);
  EXPECT_FALSE(found.log_file);
}

}  // namespace
}  // namespace ppmr
