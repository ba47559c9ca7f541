#include "daemon/background/program_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/version.h"

namespace ppmr {
namespace {

TEST(ProgramFile, ProcessWhoseFileStillExistsIsNotOld) {
  const nlohmann::json status = {{"program", describe_program()}};
  EXPECT_EQ(describe_old_program(status, kVersion), "");
}

TEST(ProgramFile, OtherVersionIsNamed) {
  const nlohmann::json status = {{"program", {{"version", "7.0.0"}, {"replaced", true}}}};
  EXPECT_EQ(describe_old_program(status, "7.1.0"), "runs ppmr 7.0.0, and this is ppmr 7.1.0");
}

TEST(ProgramFile, ReplacedFileOfTheSameVersionIsOld) {
  const nlohmann::json status = {{"program", {{"version", "7.1.0"}, {"replaced", true}}}};
  EXPECT_NE(describe_old_program(status, "7.1.0").find("replaced or removed"), std::string::npos);
}

TEST(ProgramFile, DaemonThatReportsNoVersionIsOld) {
  EXPECT_EQ(describe_old_program({{"ok", true}}, "7.1.0"),
            "runs a ppmr that is older than this one (7.1.0)");
  EXPECT_NE(describe_old_program({{"program", 7}}, "7.1.0"), "");
}

}  // namespace
}  // namespace ppmr
