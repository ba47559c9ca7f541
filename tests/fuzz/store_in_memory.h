// A small image store, which all inputs of a fuzz target use one after the other. Each input has
// its own tree, and must leave all memory free.
#pragma once

#include "fuse_target/store/image_tree.h"
#include "tests/fuzz/fuzz.h"

namespace ppmr {

struct SmallStore {
  std::unique_ptr<StoreMemory> memory = std::move(
      StoreMemory::create({.limit_bytes = kLimitMinBytes, .ready_bytes = 0}, [] {}).value());
  ImageStorage storage{*memory};
  ParkingLot parking{[](pid_t) { return false; }};

  // The store is never destroyed: its threads would have to end before libFuzzer's threads.
  static SmallStore& get() {
    static SmallStore& store = *new SmallStore;
    return store;
  }
};

// Removes the checkpoints that the sessions have left, as `ppmr` at the target would.
inline void remove_all(ImageTree& tree) {
  for (const CheckpointReport& report : tree.checkpoints()) {
    REQUIRE(tree.remove_checkpoint(report.name).has_value());
  }
  REQUIRE(tree.checkpoints().empty());
}

}  // namespace ppmr
