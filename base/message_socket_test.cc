#include "base/message_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>

namespace ppmr {
namespace {

struct Question {
  uint64_t number = 0;
  char text[16] = {};
};

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

struct MessageSocket : testing::Test {
  MessageSocket() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours = UniqueFd(ends[0]);
    theirs = UniqueFd(ends[1]);
  }
  static std::vector<UniqueFd> files(size_t count) {
    std::vector<UniqueFd> made;
    for (size_t i = 0; i < count; ++i) made.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return made;
  }
  void send(const std::string& bytes) const {
    ASSERT_EQ(::send(ours.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }
  Result<Question> receive(size_t descriptors_max = 0) {
    return receive_message<Question>(theirs.get(), "the peer", descriptors_max, &received);
  }

  UniqueFd ours, theirs;
  std::vector<UniqueFd> received;
};

TEST_F(MessageSocket, CarriesAMessageAndItsDescriptors) {
  ASSERT_TRUE(send_message(ours.get(), Question{7, "seven"}, "the peer", files(2)));
  const auto question = receive(2);
  ASSERT_TRUE(question) << question.error().message;
  EXPECT_EQ(question->number, 7u);
  EXPECT_STREQ(question->text, "seven");
  ASSERT_EQ(received.size(), 2u);
  for (const UniqueFd& file : received) {
    EXPECT_EQ(::fcntl(file.get(), F_GETFD), FD_CLOEXEC);
    char byte = 0;
    EXPECT_EQ(::read(file.get(), &byte, 1), 0);
  }
}

TEST_F(MessageSocket, CarriesAsManyDescriptorsAsTheKernelPasses) {
  ASSERT_TRUE(send_message(ours.get(), Question{}, "the peer", files(kDescriptorsMax)));
  ASSERT_TRUE(receive(kDescriptorsMax));
  EXPECT_EQ(received.size(), kDescriptorsMax);
}

TEST_F(MessageSocket, RefusesPacketsOfAnotherLengthAndGoesOn) {
  send(std::string(sizeof(Question) - 1, 'x'));
  EXPECT_EQ(receive().error().errno_value, EPROTO);
  send(std::string(sizeof(Question) + 1, 'x'));
  EXPECT_EQ(receive().error().errno_value, EPROTO);
  ASSERT_TRUE(send_message(ours.get(), Question{7, ""}, "the peer"));
  EXPECT_EQ(receive()->number, 7u);
}

TEST_F(MessageSocket, KeepsNoDescriptorOfALongerPacket) {
  const size_t before = open_descriptors();
  const std::string longer(sizeof(Question) + 1, 'x');
  ASSERT_TRUE(send_bytes(ours.get(), std::as_bytes(std::span(longer)), files(1), "the peer"));
  EXPECT_EQ(receive(1).error().errno_value, EPROTO);
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(MessageSocket, ClosesDescriptorsThatTheReceiverDoesNotTake) {
  const size_t before = open_descriptors();
  ASSERT_TRUE(send_message(ours.get(), Question{7, ""}, "the peer", files(3)));
  ASSERT_TRUE(receive(0));
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(MessageSocket, RefusesAndClosesMoreDescriptorsThanTheReceiverTakes) {
  for (const size_t sent : {2, 3, 20}) {
    const size_t before = open_descriptors();
    ASSERT_TRUE(send_message(ours.get(), Question{}, "the peer", files(sent)));
    EXPECT_EQ(receive(1).error().errno_value, EMFILE) << sent;
    EXPECT_TRUE(received.empty());
    EXPECT_EQ(open_descriptors(), before) << sent;
  }
}

TEST_F(MessageSocket, AProcessThatHasUsedUpItsDescriptorsReportsIt) {
  ASSERT_TRUE(send_message(ours.get(), Question{}, "the peer", files(2)));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next(::dup(ours.get()));
  const rlimit one_more{static_cast<rlim_t>(next.get() + 2), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const auto question = receive(2);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(question);
  EXPECT_EQ(question.error().errno_value, EMFILE);
  EXPECT_TRUE(received.empty());
}

TEST_F(MessageSocket, EndOfThePeerIsAnError) {
  ours.reset();
  EXPECT_EQ(receive().error().errno_value, EPIPE);
  const Status sent = send_message(theirs.get(), Question{}, "the peer");
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().errno_value, EPIPE);
  EXPECT_NE(sent.error().message.find("the peer has ended"), std::string::npos);
}

TEST_F(MessageSocket, PeerThatClosesWithAnUnreadMessageIsReportedAsEnded) {
  ASSERT_TRUE(send_message(theirs.get(), Question{}, "the peer"));
  ours.reset();
  EXPECT_EQ(receive().error().errno_value, EPIPE);
}

TEST(StatusMessage, CarriesAnErrorWithTheBeginningOfItsText) {
  StatusMessage<4> message;
  EXPECT_TRUE(message.status("the peer"));
  message.set({ENOENT, "no such file"});
  EXPECT_EQ(message.status("the peer").error().errno_value, ENOENT);
  EXPECT_EQ(message.status("the peer").error().message, "no s");
  message.set({0, ""});
  EXPECT_EQ(message.status("the peer").error().errno_value, EIO);
}

TEST(StatusMessage, RefusesAWrongLength) {
  StatusMessage<4> message;
  message.text_bytes = 5;
  EXPECT_EQ(message.status("the peer").error().errno_value, EPROTO);
  message.errno_value = ENOENT;
  EXPECT_EQ(message.status("the peer").error().errno_value, EPROTO);
}

}  // namespace
}  // namespace ppmr
