#include "restart_loader/criu_options.h"

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

TEST(CriuOptions, AreWordsOfALineInAConfigurationFile) {
  const auto text =
      criu_configuration({"--tcp-established", "--external", "mnt[/a\"b]:x", "--ghost-limit=4M",
                          "--images-dir", "/mnt/with blanks", "--manage-cgroups", "--lazy-pages"});
  ASSERT_TRUE(text);
  EXPECT_EQ(*text,
            "tcp-established\nexternal=mnt[/a\"b]:x\nghost-limit=4M\n"
            "images-dir \"/mnt/with blanks\"\nmanage-cgroups\nlazy-pages\n");
  for (const char* value : {"two\nlines", "blank and \"mark\"", "blank and \\"}) {
    EXPECT_FALSE(criu_configuration({"--external", value})) << value;
  }
  EXPECT_FALSE(criu_configuration({"-v4"}));
}

TEST(CriuOptions, AreNotSeenWhereThereAreNone) {
  const CriuOptions told = read_criu_options(
      {"--shell-job", "--root", "/x", "--exec-cmd", "--", "cat", "-v", "-o", "y"});
  EXPECT_FALSE(told.verbosity);
  EXPECT_FALSE(told.log_file);
}

}  // namespace
}  // namespace ppmr
