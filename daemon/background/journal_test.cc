#include "daemon/background/journal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <memory>

namespace ppmr {
namespace {

TEST(Journal, IsTheStreamThatSystemdHasNamed) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  struct stat facts {};
  ASSERT_EQ(fstat(fileno(file.get()), &facts), 0);
  const std::string own = fmt::format("{}:{}", facts.st_dev, facts.st_ino);
  EXPECT_TRUE(is_journal(fileno(file.get()), own.c_str()));
  EXPECT_FALSE(is_journal(fileno(file.get()), nullptr));
  EXPECT_FALSE(is_journal(fileno(file.get()), (own + "0").c_str())) << "redirected elsewhere";
  EXPECT_FALSE(is_journal(-1, own.c_str()));
}

TEST(Journal, LevelsHaveTheNumbersOfSyslog) {
  EXPECT_EQ(journal_prefix(spdlog::level::err), "<3>");
  EXPECT_EQ(journal_prefix(spdlog::level::warn), "<4>");
  EXPECT_EQ(journal_prefix(spdlog::level::info), "<6>");
}

}  // namespace
}  // namespace ppmr
