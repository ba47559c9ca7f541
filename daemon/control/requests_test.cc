#include "daemon/control/requests.h"

#include <gtest/gtest.h>

#include "base/request_checks.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Returns the request as the other end reads it.
template <typename Request>
Request sent(const Request& request) {
  const auto read =
      read_request<std::variant<Request>>(request_checks::on_arrival(to_request(request)));
  if (!read) throw std::runtime_error(read.error().message);
  return std::get<Request>(*read);
}

TEST(Requests, EachKindComesBackAndIsChecked) {
  check_each_kind<request::ToSource>();
  check_each_kind<request::ToTarget>();
}

TEST(Requests, AllKindsAreReadAsTheyWereSent) {
  EXPECT_FALSE(sent(request::Drain{false}).on);
  EXPECT_EQ(sent(request::Commit{"job", milliseconds(7)}).timeout, milliseconds(7));
  EXPECT_EQ(sent(request::WaitForPeer{"job", milliseconds(9)}).timeout, milliseconds(9));
  const auto memory = sent(request::SendMemory{.checkpoint = "job",
                                               .memory_bytes = 1 << 20,
                                               .file_offset = 4096,
                                               .first = {{0, 4096}, {8192, 4096}},
                                               .until = request::SendMemory::kUntilRead,
                                               .reader_timeout = milliseconds(5)});
  EXPECT_EQ(memory.first.back(), std::make_pair(uint64_t{8192}, uint64_t{4096}));
  EXPECT_EQ(memory.until, "read");
  const auto wait = sent(request::Wait{.checkpoint = "job",
                                       .owner = "tls-cert node1",
                                       .until = request::Wait::kKept,
                                       .timeout = milliseconds(0)});
  EXPECT_EQ(wait.owner, "tls-cert node1");
  EXPECT_EQ(wait.timeout, milliseconds(0));
  const auto lend = sent(
      request::Lend{.checkpoint = "job", .file = "a/b", .offset = 3, .arrived = true, .loan = 2});
  EXPECT_EQ(lend.offset, 3u);
  EXPECT_EQ(lend.loan, 2);
  const auto outcome = sent(request::NoteOutcome{
      .result = "moved", .seconds = {{"dump", {0.5}}}, .page_faults = {{{1, 2}, 0.25}}});
  EXPECT_EQ(outcome.seconds.at("dump"), std::vector<double>{0.5});
  EXPECT_EQ(outcome.page_faults->buckets.back(), 2u);
  EXPECT_EQ(sent(request::NoteOpen{{{"a1", "ready", 9}}}).migrations.front().since_ns, 9);
}

TEST(Requests, OptionalFieldThatIsMissingHasItsDefault) {
  const auto wait = read_request<request::ToTarget>({{"op", "wait"}, {"checkpoint", "job"}});
  ASSERT_TRUE(wait);
  EXPECT_EQ(std::get<request::Wait>(*wait).until, "sealed");
  EXPECT_FALSE(std::get<request::Wait>(*wait).timeout);
  const auto drain = read_request<request::ToSource>({{"op", "drain"}});
  ASSERT_TRUE(drain);
  EXPECT_TRUE(std::get<request::Drain>(*drain).on);
}

TEST(Requests, AFieldOfANewerSenderIsIgnored) {
  EXPECT_TRUE(read_request<request::ToSource>({{"op", "stay"}, {"politely", true}}));
}

TEST(Requests, MalformedRequestIsRefusedWithTheNameOfTheField) {
  const auto why = [](const json& request) {
    const auto read = read_request<request::ToTarget>(request);
    return read ? "" : read.error().message;
  };
  EXPECT_EQ(why({{"op", "commit"}}), "malformed request 'commit': checkpoint is missing");
  EXPECT_NE(why({{"op", "promise"}, {"checkpoint", "a"}, {"bytes", "many"}}).find("bytes: "),
            std::string::npos);
  EXPECT_NE(why({{"op", "note_open"}, {"migrations", {1}}}).find("migrations: "),
            std::string::npos);
  EXPECT_NE(why({{"op", "note_outcome"}, {"result", "moved"}, {"seconds", {{"dump", "long"}}}})
                .find("seconds: "),
            std::string::npos);
  for (const json& request : {json(), json::array(), json::object(), json{{"op", 3}}}) {
    EXPECT_EQ(why(request), "malformed request: op is missing") << request;
  }
}

TEST(Requests, RequestForTheOtherKindOfMountIsUnknown) {
  const auto read = read_request<request::ToSource>(to_request(request::Bundle{"job"}));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EOPNOTSUPP);
}

}  // namespace
}  // namespace ppmr
