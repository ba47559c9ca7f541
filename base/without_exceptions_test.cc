#include "base/without_exceptions.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace ppmr {
namespace {

TEST(WithoutExceptions, ReturnsTheResult) {
  EXPECT_TRUE(without_exceptions([]() -> Status { return {}; }).has_value());
  EXPECT_EQ(without_exceptions([]() -> Result<int> { return 7; }).value(), 7);
  const auto failed = without_exceptions([]() -> Status { return failure(EBUSY, "busy"); });
  EXPECT_EQ(failed.error().errno_value, EBUSY);
}

TEST(WithoutExceptions, TurnsExceptionsIntoErrors) {
  const auto error_of = [](const auto& exception) {
    return without_exceptions([&]() -> Result<int> { throw exception; }).error();
  };
  EXPECT_EQ(error_of(std::runtime_error("why")).errno_value, EIO);
  EXPECT_EQ(error_of(std::runtime_error("why")).message, "why");
  EXPECT_EQ(error_of(std::bad_alloc()).errno_value, ENOMEM);
  EXPECT_EQ(error_of(std::system_error(EAGAIN, std::generic_category())).errno_value, EAGAIN);
  EXPECT_FALSE(error_of(1).message.empty());
}

}  // namespace
}  // namespace ppmr
