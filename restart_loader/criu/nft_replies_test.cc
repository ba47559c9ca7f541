#include "restart_loader/criu/nft_replies.h"

#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <sys/socket.h>

namespace ppmr {
namespace {

constexpr uint16_t kTable = 0xa00;

std::string message(uint16_t type, const std::string& payload, uint16_t flags = 0) {
  const nlmsghdr header{.nlmsg_len = static_cast<uint32_t>(NLMSG_HDRLEN + payload.size()),
                        .nlmsg_type = type,
                        .nlmsg_flags = flags,
                        .nlmsg_seq = 1,
                        .nlmsg_pid = 0};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += payload;
  bytes.resize(NLMSG_ALIGN(bytes.size()));
  return bytes;
}

std::string number(int value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

TEST(NftReplies, DumpOfManyDatagramsIsCompleteAtItsEnd) {
  NftReplies replies;
  ASSERT_TRUE(replies.add(message(kTable, "one") + message(kTable, "two")));
  EXPECT_FALSE(replies.is_complete());
  ASSERT_TRUE(replies.add(message(kTable, "three") + message(NLMSG_DONE, number(0))));
  EXPECT_TRUE(replies.is_complete());
  EXPECT_FALSE(replies.is_interrupted());
  EXPECT_EQ(replies.messages(), (std::vector<std::string>{"one", "two", "three"}));
}

TEST(NftReplies, DumpThatEndsWithAnErrorFails) {
  NftReplies replies;
  const Status added = replies.add(message(kTable, "one") + message(NLMSG_DONE, number(-ENOMEM)));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().errno_value, ENOMEM);
  EXPECT_FALSE(replies.is_complete());
}

TEST(NftReplies, DumpDuringWhichATableChangedIsInterrupted) {
  NftReplies replies;
  ASSERT_TRUE(replies.add(message(kTable, "one") + message(kTable, "two", NLM_F_DUMP_INTR)));
  ASSERT_TRUE(replies.add(message(kTable, "three") + message(NLMSG_DONE, number(0))));
  EXPECT_TRUE(replies.is_complete());
  EXPECT_TRUE(replies.is_interrupted());

  NftReplies at_end;
  ASSERT_TRUE(at_end.add(message(NLMSG_DONE, number(0), NLM_F_DUMP_INTR)));
  EXPECT_TRUE(at_end.is_interrupted());
}

TEST(NftReplies, AcknowledgementIsTheEnd) {
  NftReplies good;
  ASSERT_TRUE(good.add(message(NLMSG_ERROR, number(0))));
  EXPECT_TRUE(good.is_complete());
  NftReplies refused;
  EXPECT_EQ(refused.add(message(NLMSG_ERROR, number(-EPERM))).error().errno_value, EPERM);
}

TEST(NftReplies, IncompleteMessagesAreRefused) {
  const std::string whole = message(kTable, "four");
  EXPECT_EQ(NftReplies().add(whole.substr(0, whole.size() - 1)).error().errno_value, EPROTO);
  std::string no_length = whole;
  no_length[0] = 0;
  EXPECT_EQ(NftReplies().add(no_length).error().errno_value, EPROTO);
}

}  // namespace
}  // namespace ppmr
