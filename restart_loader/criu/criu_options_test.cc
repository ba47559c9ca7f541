#include "restart_loader/criu/criu_options.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(CriuOptions, AreFoundInEachOfTheirForms) {
  for (const std::vector<std::string>& options : {std::vector<std::string>{"-v4", "-o", "a.log"},
                                                  {"-vvvv", "-oa.log"},
                                                  {"--verbosity=4", "--log-file=a.log"},
                                                  {"--verbosity", "4", "--log-file", "a.log"}}) {
    const CriuOptions told = read_criu_options(options);
    EXPECT_TRUE(told.verbosity) << options[0];
    EXPECT_EQ(told.log_file, "a.log") << options[0];
    EXPECT_FALSE(told.pid_file);
  }
  EXPECT_EQ(read_criu_options({"--pidfile", "p"}).pid_file, "p");
  EXPECT_EQ(read_criu_options({"--pidfile=p"}).pid_file, "p");
}

TEST(CriuOptions, AreLinesOfAConfigurationFileButForWhatItCannotHold) {
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

TEST(CriuOptions, AreRefusedWhereTheyCannotBeSaid) {
  for (const std::vector<std::string>& options : {std::vector<std::string>{"-v4"},
                                                  {"--network-lock", "tables"},
                                                  {"--network-lock"},
                                                  {"--pidfile", "with blanks"},
                                                  {"--pidfile=two\nlines"}}) {
    EXPECT_FALSE(criu_settings(options)) << options[0];
  }
}

TEST(CriuOptions, AreNotSeenWhereThereAreNone) {
  const CriuOptions told = read_criu_options(
      {"--shell-job", "--root", "/x", "--exec-cmd", "--", "cat", "-v", "-o", "y"});
  EXPECT_FALSE(told.verbosity);
  EXPECT_FALSE(told.log_file);
}

}  // namespace
}  // namespace ppmr
