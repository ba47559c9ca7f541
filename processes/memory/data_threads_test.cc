#include "processes/memory/data_threads.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(DataThreads, AreFewWithFewProcessors) {
  for (const size_t processors : {0, 1, 2, 3}) {
    EXPECT_EQ(memory_readers(processors), 1u) << processors;
    EXPECT_EQ(usual_streams(processors), 2u) << processors;
  }
  EXPECT_EQ(page_fillers(0), 1u);  // the number of processors is unknown
  EXPECT_EQ(page_fillers(1), 1u);
  EXPECT_EQ(page_fillers(2), 2u);
}

TEST(DataThreads, GrowWithTheProcessorsUpToALimit) {
  EXPECT_EQ(memory_readers(4), 2u);
  EXPECT_EQ(memory_readers(16), 8u);
  EXPECT_EQ(memory_readers(1000), kMemoryReadersMax);
  EXPECT_EQ(usual_streams(8), 4u);
  EXPECT_EQ(usual_streams(1000), kUsualStreamsMax);
  EXPECT_EQ(page_fillers(8), 8u);
  EXPECT_EQ(page_fillers(1000), kPageFillersMax);
}

}  // namespace
}  // namespace ppmr
