#include "daemon/command_line/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ConfigFile : public testing::Test {
 protected:
  ConfigFile() {
    add_config_option(command_);
    command_.add_option("MOUNTPOINT,--mountpoint", mountpoint_)->required();
    command_.add_option("--listen", listen_);
    command_.add_flag("--allow-restart", allow_restart_);
    command_.add_option("--allow-peer", peers_)->allow_extra_args(false)->take_all();
    app_.add_subcommand("other");
  }
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "config_file_test-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& text) {
    const std::string path = directory_ + "/target.conf";
    std::ofstream(path) << text;
    return path;
  }
  void parse(const std::vector<std::string>& arguments) {
    auto all = with_config_file(app_, arguments);
    ASSERT_TRUE(all) << all.error().message;
    std::reverse(all->begin(), all->end());
    app_.parse(*all);
  }
  std::string error_of(const std::string& text) {
    const auto all = with_config_file(app_, {"target", "--config", write(text)});
    return all ? "" : all.error().message;
  }

  CLI::App app_;
  CLI::App& command_ = *app_.add_subcommand("target");
  std::string directory_, mountpoint_, listen_;
  bool allow_restart_ = false;
  std::vector<std::string> peers_;
};

TEST_F(ConfigFile, SetsOptionsFlagsListsAndTheMountpoint) {
  const std::string path = write(R"(
# a comment
mountpoint = "/run/ppmr/in"
listen = 10.0.0.2:7440
allow-restart = true
allow-peer = ["a", "b c"]
)");
  parse({"target", "--config", path});
  EXPECT_EQ(mountpoint_, "/run/ppmr/in");
  EXPECT_EQ(listen_, "10.0.0.2:7440");
  EXPECT_TRUE(allow_restart_);
  EXPECT_THAT(peers_, ElementsAre("a", "b c"));
}
TEST_F(ConfigFile, AddressOfIPv6NeedsNoQuotes) {
  for (const std::string given : {"[::]:7440", "\"[::]:7440\"", "[::]:7440  "}) {
    const std::string path = write("listen = " + given + "\nmountpoint = /run/ppmr/in\n");
    parse({"target", "--config", path});
    EXPECT_EQ(listen_, "[::]:7440");
    EXPECT_EQ(mountpoint_, "/run/ppmr/in");
  }
}
TEST_F(ConfigFile, CommandLineOverridesTheFile) {
  const std::string path = write("mountpoint = /a\nlisten = a:1\nallow-restart = true\n");
  parse({"target", "--config=" + path, "--mountpoint=/b", "--listen", "b:2",
         "--allow-restart=false"});
  EXPECT_EQ(mountpoint_, "/b");
  EXPECT_EQ(listen_, "b:2");
  EXPECT_FALSE(allow_restart_);
}
TEST_F(ConfigFile, AValueIsOneArgumentEvenIfItLooksLikeAnOption) {
  const std::string path = write("mountpoint = \"--listen=c:3\"\nlisten = a:1\n");
  parse({"target", "--config", path});
  EXPECT_EQ(mountpoint_, "--listen=c:3");
  EXPECT_EQ(listen_, "a:1");
}
TEST_F(ConfigFile, ErrorsNameTheFileAndTheOption) {
  EXPECT_THAT(error_of("lissten = a:1\n"), HasSubstr("target.conf: `lissten` is not an option"));
  EXPECT_THAT(error_of("config = /etc/other\n"), HasSubstr("`config` is not an option"));
  EXPECT_THAT(error_of("[target]\nlisten = a:1\n"), HasSubstr("[target]: sections"));
  EXPECT_THAT(error_of("listen = \"\"\n"), HasSubstr("`listen` has no value"));
  EXPECT_THAT(error_of("listen = a:1\nmountpoint = /a\nlisten = a:2\n"),
              HasSubstr("`listen` occurs twice"));
  EXPECT_THAT(error_of("listen = a:1\nlisten = a:2\n"), HasSubstr("`listen` occurs twice"));
  const auto missing = with_config_file(app_, {"target", "--config", "/missing"});
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("--config /missing: No such file"));
  EXPECT_FALSE(with_config_file(app_, {"target", "--config", directory_}));
}
TEST_F(ConfigFile, OtherCommandsAndArgumentsAfterTwoDashesAreLeftAlone) {
  const std::vector<std::string> other = {"other", "--config", "/missing"};
  EXPECT_EQ(with_config_file(app_, other), other);
  const std::vector<std::string> after = {"target", "--", "--config", "/missing"};
  EXPECT_EQ(with_config_file(app_, after), after);
}

}  // namespace
}  // namespace ppmr
