// The audit file is private and has one line of ASCII per event. The lines about strangers are
// limited.
#include "daemon/audit/audit_trail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::HasSubstr;

class Audit : public testing::Test {
 protected:
  Audit() {
    std::string path = (std::filesystem::temp_directory_path() / "audit_test-XXXXXX").string();
    directory_ = ::mkdtemp(path.data());
    file_ = directory_ + "/audit.json";
  }
  ~Audit() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<AuditTrail> open() const { return std::move(AuditTrail::open(file_).value()); }
  static std::vector<json> lines_of(const std::string& file) {
    std::vector<json> lines;
    std::ifstream text(file);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::vector<json> lines() const { return lines_of(file_); }

  std::string directory_;
  std::string file_;
};

TEST_F(Audit, FileIsPrivateAndKeepsItsEarlierLines) {
  open()->write("restart", {{"outcome", "running"}, {"uids", {0, 1000}}});
  open()->write("restart", {{"outcome", "failed"}});
  struct stat found {};
  ASSERT_EQ(::stat(file_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].at("event"), "restart");
  EXPECT_EQ(all[0].at("uids"), json({0, 1000}));
  EXPECT_THAT(all[0].at("time").get<std::string>(), testing::MatchesRegex(".*T.*\\....Z"));
}

TEST_F(Audit, RefusesAFileThatIsNotSafe) {
  ASSERT_EQ(::symlink("/etc/passwd", file_.c_str()), 0);
  auto link = AuditTrail::open(file_);
  ASSERT_FALSE(link);
  EXPECT_THAT(link.error().message, HasSubstr("symbolic link"));
  ::unlink(file_.c_str());
  std::ofstream(file_) << "";
  ::chmod(file_.c_str(), 0666);
  auto shared = AuditTrail::open(file_);
  ASSERT_FALSE(shared);
  EXPECT_THAT(shared.error().message, HasSubstr("other users can change it"));
  EXPECT_FALSE(AuditTrail::open(directory_ + "/missing/audit.json"));
}

TEST_F(Audit, EscapesBytesFromPeers) {
  const std::string evil("node\n{\"event\":\"forged\"}\x1b[2J\xff\xe2\x80\xae");
  open()->write(ConnectionEvent{.outcome = "refused", .address = "10.0.0.1:1", .name = evil});
  std::ifstream file(file_);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  for (const char c : text.substr(0, text.size() - 1)) {
    EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
  }
  EXPECT_THAT(lines().at(0).at("name").get<std::string>(), HasSubstr("node\n{"));
  EXPECT_EQ(lines().at(0).at("event"), "connection");
}

TEST_F(Audit, StrangersCannotFillTheDisk) {
  auto trail = open();
  const auto begin = AuditTrail::Clock::now();
  const ConnectionEvent stranger{.outcome = "refused", .address = "a", .from_stranger = true};
  for (int i = 0; i < 10'000; ++i) trail->write(stranger, begin);
  EXPECT_EQ(lines().size(), static_cast<size_t>(AuditTrail::kStrangersAtOnce));
  trail->write(ConnectionEvent{.outcome = "accepted", .address = "b", .peer = "known"}, begin);
  EXPECT_EQ(lines().back().at("peer"), "known");
  EXPECT_FALSE(lines().back().contains("left_out"));
  trail->write(stranger, begin + seconds(1));
  EXPECT_EQ(lines().back().at("left_out"), 9'900);
  trail->write(stranger, begin + seconds(1));
  EXPECT_FALSE(lines().back().contains("left_out"));
}

TEST_F(Audit, IsOpenedAgainAfterARotation) {
  auto trail = open();
  trail->write("a", json::object());
  std::filesystem::rename(file_, file_ + ".1");
  trail->write("b", json::object());
  ASSERT_TRUE(trail->reopen());
  trail->write("c", json::object());
  EXPECT_EQ(lines_of(file_ + ".1").size(), 2u);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0].at("event"), "c");
}

}  // namespace
}  // namespace ppmr
