// Runs this node's CRIU on this node's processor.
#include "restart_loader/criu/cpu_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "restart_loader/criu/criu_process.h"

namespace ppmr {
namespace {

class CpuCheck : public testing::Test {
 protected:
  void SetUp() override {
    const auto criu = find_criu();
    if (!criu) GTEST_SKIP() << "NOT TESTED: CPU checks; " << criu.error().message;
    criu_ = *criu;
    const auto description = describe_processor(criu_);
    if (!description)
      GTEST_SKIP() << "NOT TESTED: CPU checks, which this CRIU lacks: "
                   << description.error().message;
    own_ = *description;
  }
  std::string criu_, own_;
};

TEST(DescribeProcessor, SuccessOfCriuWithoutAnImageIsAnError) {
  const auto description = describe_processor("/bin/true");
  ASSERT_FALSE(description) << *description;
  EXPECT_EQ(description.error().errno_value, ENOENT);
  EXPECT_NE(description.error().message.find("cpuinfo.img"), std::string::npos)
      << description.error().message;
}

TEST_F(CpuCheck, AcceptsTheSameProcessor) {
  const Status checked = check_processor(criu_, own_);
  EXPECT_TRUE(checked) << checked.error().message;
}

TEST_F(CpuCheck, RefusesAMalformedProcessorDescriptionWithoutRunningCriu) {
  for (const std::string& text : {std::string(), std::string("hello"), own_.substr(1), own_ + "xx",
                                  "00" + own_, own_ + std::string(1 << 20, '0')}) {
    const Status checked = check_processor("/bin/false", text);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().errno_value, EPROTO) << text.substr(0, 20);
  }
}

// Makes a description of this processor with another size of its state: appends a second xsave_size
// (field 9 of cpuinfo_x86_entry), which replaces the first one.
TEST_F(CpuCheck, RefusesIncompatibleTargetAndQuotesCriu) {
  const auto byte_at = [&](size_t i) { return std::stoi(own_.substr(2 * i, 2), nullptr, 16); };
  const int size = byte_at(8), entry_size = byte_at(13);
  if (byte_at(12) != 0x0a || size != entry_size + 2 || entry_size > 0x7c) {
    GTEST_SKIP() << "NOT TESTED: a refusal; not an x86 entry, or a large one: " << own_;
  }
  const std::string other = fmt::format("{}{:02x}{}{:02x}{}48ff7f", own_.substr(0, 16), size + 3,
                                        own_.substr(18, 8), entry_size + 3, own_.substr(28));
  const Status checked = check_processor(criu_, other);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().errno_value, ENOTSUP);
  EXPECT_NE(checked.error().message.find("xsave size"), std::string::npos)
      << checked.error().message;
}

}  // namespace
}  // namespace ppmr
