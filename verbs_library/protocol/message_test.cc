// Tests messages between libraries and files of the directory: they are read as they were written,
// and all other bytes are refused.
#include "verbs_library/protocol/message.h"

#include <gtest/gtest.h>

#include <random>

#include "verbs_library/protocol/end_file.h"

namespace ppmr::verbs {
namespace {

Message example() {
  Message message;
  message.kind = static_cast<uint8_t>(RequestKind::kReconnect);
  message.from.gid[15] = 1;
  message.from.qpn = 17;
  message.to.gid[15] = 2;
  message.to.qpn = 0xffffff;
  message.secret[0] = 0xab;
  message.serial = 1ull << 40;
  message.sent = 12345678901234;
  message.address = {.gid = message.from.gid,
                     .qpn = 18,
                     .psn = 0xabcdef,
                     .control = {"10.0.0.1", 4711},
                     .keys = {{0x100, 0x200}, {0xffffffff, 0}}};
  return message;
}

std::span<const uint8_t> body_of(const std::vector<uint8_t>& frame) {
  return std::span(frame).subspan(kFrameHeaderBytes);
}

TEST(Message, IsReadAsItWasWritten) {
  const std::vector<uint8_t> frame = encode(example());
  const auto length = decode_length(std::span(frame).first<kFrameHeaderBytes>());
  ASSERT_TRUE(length);
  EXPECT_EQ(*length, frame.size() - kFrameHeaderBytes);
  const auto read = decode(body_of(frame));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, example());
}

TEST(Message, CutOffOrTooLongMessageIsRefused) {
  std::vector<uint8_t> frame = encode(example());
  for (size_t size = 0; size < frame.size() - kFrameHeaderBytes; ++size)
    EXPECT_FALSE(decode(body_of(frame).first(size))) << size;
  frame.push_back(0);
  EXPECT_FALSE(decode(body_of(frame)));
}

TEST(Message, MessageWithForeignVersionKindOrNumbersIsRefused) {
  Message message = example();
  message.kind = 0;
  EXPECT_FALSE(decode(body_of(encode(message))));
  message.kind = 200;
  EXPECT_FALSE(decode(body_of(encode(message))));
  message = example();
  message.address.qpn = 1 << 24;
  EXPECT_FALSE(decode(body_of(encode(message))));
  std::vector<uint8_t> frame = encode(example());
  frame[kFrameHeaderBytes + 3] ^= 1;
  EXPECT_FALSE(decode(body_of(frame)));
}

TEST(Message, RandomChangesOfBytesDoNoHarm) {
  std::mt19937 random(1);
  const std::vector<uint8_t> good = encode(example());
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> frame = good;
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes)
      frame[random() % frame.size()] = static_cast<uint8_t>(random());
    if (const auto read = decode(body_of(frame))) {
      EXPECT_EQ(encode(*read).size(), frame.size());
    }
  }
}

TEST(Message, LengthBeyondTheLimitIsRefused) {
  const std::array<uint8_t, kFrameHeaderBytes> huge = {0xff, 0, 0, 0};
  const std::array<uint8_t, kFrameHeaderBytes> zero = {};
  EXPECT_FALSE(decode_length(huge));
  EXPECT_FALSE(decode_length(zero));
}

EndFile example_file() {
  EndFile file;
  file.control = {"fd00::1", 1};
  file.secret[15] = 0xff;
  file.moves = true;
  file.has_moved = true;
  file.gid[0] = 0xfe;
  file.qpn = 0x1234;
  return file;
}

TEST(EndFile, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_end_file(format(example_file())), example_file());
}

TEST(EndFile, MalformedFileIsRefused) {
  const std::string good = format(example_file());
  EXPECT_FALSE(parse_end_file(""));
  EXPECT_FALSE(parse_end_file("ppmr-verbs 2\n"));
  EXPECT_FALSE(parse_end_file(good.substr(0, good.size() - 1)));
  EXPECT_FALSE(parse_end_file(good.substr(0, good.rfind("qpn"))));
  EXPECT_FALSE(parse_end_file(good + std::string(kEndFileBytesMax, '\n')));
  std::string text = good;
  text.replace(text.find("fd00::1"), 7, "host.me");
  EXPECT_FALSE(parse_end_file(text)) << "an address must be a number, not a host name";
  text = good;
  text.replace(text.find("port 1"), 6, "port 65536");
  EXPECT_FALSE(parse_end_file(text));
}

TEST(EndId, NamesAFile) {
  EndId end;
  end.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  end.qpn = 0x2a;
  EXPECT_EQ(file_name_of(end), "00000000000000000000ffff0a000001-2a");
  EXPECT_EQ(address_of(end.gid), "10.0.0.1");
}

}  // namespace
}  // namespace ppmr::verbs
