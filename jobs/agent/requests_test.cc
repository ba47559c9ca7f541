#include "jobs/agent/requests.h"

#include <gtest/gtest.h>

#include "base/request_checks.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Returns the request as the other end parses it.
template <typename Request>
json on_arrival(const Request& request) {
  return request_checks::on_arrival(to_request(request));
}

TEST(JobRequests, EachKindComesBackAndIsChecked) {
  check_each_kind<user_request::Any>();
  check_each_kind<host_request::Any>();
}

// Fields of the same type must not be swapped.
TEST(JobRequests, EachFieldArrivesUnderItsName) {
  const auto settle = read_one<host_request::Settle>(on_arrival(host_request::Settle{
      .job = "j", .index = 3, .from = "f", .moved = true, .downtime_s = 0.25, .error = "e"}));
  ASSERT_TRUE(settle);
  EXPECT_EQ(settle->job + settle->from + settle->error, "jfe");
  EXPECT_EQ(settle->index, 3u);
  EXPECT_TRUE(settle->moved);
  EXPECT_FALSE(settle->spare_failed);
  EXPECT_EQ(settle->downtime_s, 0.25);
  const auto begin = read_one<host_request::EpochBegin>(on_arrival(host_request::EpochBegin{
      .container = "c", .number = 7, .oldest = 5, .partner = "p", .hold = true}));
  ASSERT_TRUE(begin);
  EXPECT_EQ(begin->container + begin->partner, "cp");
  EXPECT_EQ(begin->number, 7u);
  EXPECT_EQ(begin->oldest, 5u);
  EXPECT_TRUE(begin->hold);
}

// Earlier, an unknown downtime was sent as -1, and the home refused such a settlement.
TEST(JobRequests, AnUnknownDowntimeIsAbsent) {
  const json sent = on_arrival(host_request::Settle{.job = "j", .from = "f"});
  EXPECT_FALSE(sent.contains("downtime_s"));
  const auto settle = read_one<host_request::Settle>(sent);
  ASSERT_TRUE(settle) << settle.error().message;
  EXPECT_FALSE(settle->downtime_s);
}

TEST(JobRequests, FieldThatIsNotSetIsAbsent) {
  const auto hello = to_request(host_request::Hello{.user = 1000});
  EXPECT_FALSE(hello.contains("allocation"));
  EXPECT_FALSE(read_one<host_request::Hello>(hello)->allocation);
  const auto in_step = to_request(host_request::Hello{.user = 1000, .allocation = ""});
  EXPECT_EQ(read_one<host_request::Hello>(in_step)->allocation, "");
}

TEST(JobRequests, ErrorOfAMalformedRequestNamesItsKindAndField) {
  const auto without = read_request<host_request::Any>({{"op", "arrived"}});
  EXPECT_EQ(without.error().message, "malformed request 'arrived': container is missing");
  const auto wrong = read_request<host_request::Any>({{"op", "present"}, {"container", 7}});
  EXPECT_NE(wrong.error().message.find("malformed request 'present': container: "),
            std::string::npos);
  EXPECT_EQ(read_request<user_request::Any>({{"op", "join"}}).error().errno_value, EOPNOTSUPP)
      << "a user makes no job node by its name";
}

}  // namespace
}  // namespace ppmr
