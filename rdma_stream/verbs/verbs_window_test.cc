#include "rdma_stream/verbs/verbs_window.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace ppmr {
namespace {

TEST(ReadWindow, CompletesAPullWhenItsLastReadCompletes) {
  ReadWindow window;
  std::vector<std::byte> memory(4 * 4096);
  std::array<Landing::Piece, 4> pieces;
  for (size_t i = 0; i < 4; ++i) pieces[i] = {memory.data() + i * 4096, 4096, 0, 0};
  const std::array<uint32_t, 4> keys = {1, 2, 3, 4};
  const Pull pull{7, 1, 0, 4 * 4096, pieces};
  const ReadLimits limits{64, 3, 6000};
  std::vector<uint64_t> ids;
  std::vector<uint64_t> addresses;
  uint64_t bytes = 0;
  ASSERT_TRUE(window.add(pull, keys, 1000, 9, limits, [&](const ReadWork& work) -> Status {
    ids.push_back(work.id);
    addresses.push_back(work.peer_address);
    uint64_t length = 0;
    for (auto& piece : work.pieces) length += piece.length;
    EXPECT_LE(length, 6000u);
    EXPECT_EQ(work.peer_address, 1000 + bytes);
    bytes += length;
    return {};
  }));
  EXPECT_EQ(bytes, 4u * 4096);
  EXPECT_EQ(ids.size(), 3u);
  Pull done;
  EXPECT_EQ(window.complete(ids[1], done), ReadWindow::Outcome::kPart);
  EXPECT_EQ(window.complete(ids[1], done), ReadWindow::Outcome::kUnknown);
  EXPECT_EQ(window.complete(ids[0], done), ReadWindow::Outcome::kPart);
  EXPECT_FALSE(window.empty());
  EXPECT_EQ(window.complete(ids[2], done), ReadWindow::Outcome::kWhole);
  EXPECT_EQ(done.slot, 7u);
  EXPECT_TRUE(window.empty());
  EXPECT_EQ(window.complete(ids[2], done), ReadWindow::Outcome::kUnknown);
  EXPECT_EQ(window.complete(~uint64_t{0}, done), ReadWindow::Outcome::kUnknown);
}

TEST(ReadWindow, NeverReusesTheIdOfARead) {
  ReadWindow window;
  std::array<std::byte, 64> memory;
  const std::array<Landing::Piece, 1> pieces = {Landing::Piece{memory.data(), 64, 0, 0}};
  const std::array<uint32_t, 1> keys = {1};
  const ReadLimits limits{64, 16, 1 << 20};
  std::vector<uint64_t> ids;
  const auto post = [&](const ReadWork& work) -> Status {
    ids.push_back(work.id);
    return {};
  };
  Pull pull{0, 1, 0, 64, pieces};
  ASSERT_TRUE(window.add(pull, keys, 0, 1, limits, post));
  ASSERT_TRUE(window.give_back(pull));  // the connection broke
  EXPECT_FALSE(window.give_back(pull));
  ASSERT_TRUE(window.add(pull, keys, 0, 1, limits, post));
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(window.complete(ids[0], pull), ReadWindow::Outcome::kUnknown);
  EXPECT_EQ(window.complete(ids[1], pull), ReadWindow::Outcome::kWhole);
}

}  // namespace
}  // namespace ppmr
