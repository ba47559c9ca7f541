#include "jobs/agent/hook_request.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/test_directory.h"

namespace ppmr {
namespace {

using namespace std::chrono_literals;

int error_of(const Result<HookRequest>& request) {
  return request ? 0 : request.error().errno_value;
}

TEST(HookRequest, NamesASpareOrNone) {
  EXPECT_EQ(parse_hook_request(R"({"to":"n4"})", 0s)->to, "n4");
  EXPECT_EQ(parse_hook_request("{}\n", 0s)->to, "");
  EXPECT_EQ(parse_hook_request("", 5s)->to, "");
  EXPECT_EQ(error_of(parse_hook_request(R"({"to":4})", 5s)), EINVAL);
}

TEST(HookRequest, MayBeIncompleteWhileItIsNew) {
  for (const char* text : {"", "[", R"({"to":"n)"}) {
    EXPECT_EQ(error_of(parse_hook_request(text, 10ms)), EAGAIN) << text;
    EXPECT_EQ(error_of(parse_hook_request(text, -10ms)), EAGAIN) << text;
  }
  EXPECT_EQ(error_of(parse_hook_request("[", 5s)), EINVAL);
  EXPECT_EQ(error_of(parse_hook_request("", -1h)), 0) << "the clock was set";
}

TEST(HookRequest, ThatVanishedAsksForNothing) {
  const TestDirectory directory;
  const std::string path = directory.path() + "/drain.request";
  EXPECT_EQ(error_of(read_hook_request(path)), ENOENT);
  EXPECT_EQ(error_of(read_hook_request(directory.path())), EIO);
  std::ofstream(path).flush();
  EXPECT_EQ(error_of(read_hook_request(path)), EAGAIN);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - 5s);
  EXPECT_EQ(error_of(read_hook_request(path)), 0);
}

}  // namespace
}  // namespace ppmr
