#include <gtest/gtest.h>

#include "jobs/command/peer_directory_server.h"

namespace ppmr {
namespace {

constexpr const char* kToken = "00ff";

class PeerDirectoryTest : public testing::Test {
 protected:
  DirectoryReply ask(DirectoryOp op, const std::string& name, const std::string& text = "") {
    return directory_.answer(to_text(DirectoryRequest{kToken, op, name, text}));
  }

  PeerDirectory directory_{kToken, /*names_max=*/2};
};

TEST_F(PeerDirectoryTest, NameIsTakenOnceAndFreeAfterItsRemoval) {
  EXPECT_EQ(ask(DirectoryOp::kCreate, "a", "one").code, DirectoryCode::kDone);
  EXPECT_EQ(ask(DirectoryOp::kCreate, "a", "two").code, DirectoryCode::kTaken);
  EXPECT_EQ(ask(DirectoryOp::kGet, "a").text, "one");
  EXPECT_EQ(ask(DirectoryOp::kRemove, "a").code, DirectoryCode::kDone);
  EXPECT_EQ(ask(DirectoryOp::kGet, "a").code, DirectoryCode::kNone);
  EXPECT_EQ(ask(DirectoryOp::kCreate, "a", "two").code, DirectoryCode::kDone);
}

TEST_F(PeerDirectoryTest, WriteReplacesTheWholeText) {
  ask(DirectoryOp::kCreate, "a", "a long text\nof two lines\n");
  EXPECT_EQ(ask(DirectoryOp::kWrite, "a", "short").code, DirectoryCode::kDone);
  EXPECT_EQ(ask(DirectoryOp::kGet, "a").text, "short");
}

TEST_F(PeerDirectoryTest, NumberOfNamesIsLimitedAndExistingNamesStayUsable) {
  ask(DirectoryOp::kCreate, "a");
  ask(DirectoryOp::kCreate, "b");
  EXPECT_EQ(ask(DirectoryOp::kCreate, "c").code, DirectoryCode::kRefused);
  EXPECT_EQ(ask(DirectoryOp::kWrite, "c").code, DirectoryCode::kRefused);
  EXPECT_EQ(ask(DirectoryOp::kWrite, "b", "new").code, DirectoryCode::kDone);
}

TEST_F(PeerDirectoryTest, RequestsWithoutTheTokenAreRefused) {
  ask(DirectoryOp::kCreate, "a", "one");
  for (const char* request : {"", "\n", "00fe g a\n", "00ff g a", "00ff x a\n", "00ff g \n",
                              " g a\n", "00ff\n", "00ff r\n", "00ff  r a\n"}) {
    const DirectoryReply reply = directory_.answer(request);
    EXPECT_EQ(reply.code, DirectoryCode::kRefused) << request;
    EXPECT_EQ(reply.text, "") << request;
  }
  const std::string long_name(kDirectoryNameMax + 1, 'a');
  EXPECT_EQ(ask(DirectoryOp::kCreate, long_name).code, DirectoryCode::kRefused);
  const std::string long_text(kDirectoryTextMax + 1, 'a');
  EXPECT_EQ(ask(DirectoryOp::kWrite, "a", long_text).code, DirectoryCode::kRefused);
  EXPECT_EQ(ask(DirectoryOp::kGet, "a").text, "one");
}

TEST(DirectoryReply, SurvivesTheWireAndGarbageDoesNot) {
  const auto reply = parse_directory_reply(to_text({DirectoryCode::kDone, "a\nb"}));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->code, DirectoryCode::kDone);
  EXPECT_EQ(reply->text, "a\nb");
  EXPECT_FALSE(parse_directory_reply(""));
  EXPECT_FALSE(parse_directory_reply("x"));
  EXPECT_FALSE(parse_directory_reply("k" + std::string(kDirectoryTextMax + 1, 'a')));
}

}  // namespace
}  // namespace ppmr
