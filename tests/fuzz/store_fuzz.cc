// Fuzzes the image store: any order of valid and invalid messages of two sources, between reads of
// the mount and of the control socket.
#include <algorithm>
#include <deque>

#include "tests/fuzz/store_in_memory.h"

namespace ppmr {
namespace {

constexpr size_t kLandingsMax = 16;

class Sources {
 public:
  Sources(ImageTree& tree, std::span<const uint8_t> input)
      : tree_(tree), input_(input.data(), input.size()) {
    tree_.session_opened(1, "one", "first owner");
    tree_.session_opened(2, "two", "second owner");
  }

  void run() {
    while (input_.remaining_bytes() > 0) step();
    while (!landings_.empty()) abandon();
    tree_.session_ended(1, "the input ends");
    tree_.session_ended(2, "the input ends");
  }

 private:
  void step() {
    const SessionId session = 1 + input_.ConsumeBool();
    switch (input_.ConsumeIntegralInRange(0, 19)) {
      case 0:
        return (void)tree_.claim(session, {0, node(), type(), attributes(), name(), name()});
      case 1:
        return (void)tree_.make(session, {node(), node(), type(), attributes(), name(), name()});
      case 2:
        return (void)tree_.remove(session, {node(), name()});
      case 3:
        return (void)tree_.rename(session, {0, node(), node(), name(), name()});
      case 4:
        return (void)tree_.set_attributes(session, {node(), attributes()});
      case 5:
        return (void)tree_.truncate(session, {node(), offset()});
      case 6:
        return (void)tree_.punch_hole(session, {node(), offset(), offset()});
      case 7:
        return (void)tree_.zeros(session, {node(), offset(), offset()});
      case 8:
        return (void)tree_.opened_for_write(session, {node()});
      case 9:
        return (void)tree_.closed(session, {node(), offset(), attributes()});
      case 10:
        return (void)tree_.forget(session, {node()});
      case 11:
        return announce(session);
      case 12:
        return land();
      case 13:
        return abandon();
      case 14:
        return read_back(session);
      case 15:
        return (void)tree_.manifest_entry(
            session, {node(), node(), node(), type(), 0644, offset(), digest(), name()});
      case 16:
        return (void)tree_.seal(session, {0, node(), input_.ConsumeIntegral<uint8_t>()});
      case 17:
        return (void)tree_.abandon_checkpoint(session, {node(), name()});
      case 18:
        return look();
      default:
        return (void)tree_.remove_checkpoint(name());
    }
  }

  void announce(SessionId session) {
    const NodeKey key{session, node()};
    const uint64_t at = offset();
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(offset(), UINT32_MAX));
    // Checks the same limits as handle_announce().
    if (length == 0 || length > (1U << 20) || at > uint64_t{INT64_MAX} - length) return;
    if (landings_.size() == kLandingsMax || !tree_.announced(key, at, length)) return;
    auto landing = tree_.reserve(key, at, length);
    if (!landing) return tree_.abandon_announced(key, at, length, landing.error());
    uint64_t bytes = 0;
    REQUIRE(landing->piece_count <= Landing::kPiecesMax);
    for (uint32_t i = 0; i < landing->piece_count; ++i) bytes += landing->pieces[i].length;
    REQUIRE(bytes == length);
    landings_.push_back(*landing);
  }

  void land() {
    if (landings_.empty()) return;
    (void)tree_.land(take(), digest());
  }

  void abandon() {
    if (landings_.empty()) return;
    tree_.abandon(take(), Error{EIO, "abandoned"});
  }

  Landing take() {
    const auto at = landings_.begin() + input_.ConsumeIntegralInRange<ptrdiff_t>(
                                            0, static_cast<ptrdiff_t>(landings_.size()) - 1);
    const Landing landing = *at;
    landings_.erase(at);
    return landing;
  }

  void read_back(SessionId session) {
    std::vector<std::byte> bytes(input_.ConsumeIntegralInRange<size_t>(0, 64 << 10));
    if (auto count = tree_.read({session, node()}, offset(), bytes))
      REQUIRE(*count <= bytes.size());
  }

  // Reads like the mount and `ppmr restart`.
  void look() {
    const auto root = tree_.find(kRootInode);
    (void)tree_.entries(root);
    const std::string top = name();
    const auto node = tree_.look_up(root, top, /*keep=*/false);
    if (node) {
      (void)tree_.view(*node);
      (void)tree_.entries(node);
      (void)tree_.place(*node);
      (void)tree_.remove_entry(node, name(), input_.ConsumeBool());
    }
    (void)tree_.lend(top, name(), offset(), input_.ConsumeBool());
    REQUIRE(tree_.space().free_bytes <= kLimitMinBytes);
  }

  uint64_t node() { return input_.ConsumeIntegral<uint8_t>() % 12; }
  wire::NodeType type() {
    return static_cast<wire::NodeType>(input_.ConsumeIntegralInRange<uint16_t>(0, 4));
  }
  wire::Attributes attributes() { return {.mode = input_.ConsumeIntegral<uint16_t>()}; }
  std::string name() {
    static constexpr std::array kNames = {"a", "b", "inventory.img", "c", ".", "..", "", "a/b"};
    return kNames[input_.ConsumeIntegral<uint8_t>() % kNames.size()];
  }
  uint64_t digest() { return input_.ConsumeIntegral<uint8_t>(); }
  // Returns an offset near the borders of blocks, windows and numbers.
  uint64_t offset() {
    static constexpr std::array<uint64_t, 8> kBorders = {
        0, 4096, 8192, 64 << 10, 1 << 20, 2 << 20, 6 << 20, uint64_t{INT64_MAX}};
    const uint64_t border = kBorders[input_.ConsumeIntegral<uint8_t>() % kBorders.size()];
    return border + static_cast<uint64_t>(int64_t{input_.ConsumeIntegral<int16_t>()});
  }

  ImageTree& tree_;
  FuzzedDataProvider input_;
  std::deque<Landing> landings_;
};

}  // namespace
}  // namespace ppmr

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  SmallStore& store = SmallStore::get();
  {
    ImageTree tree(store.storage, store.parking);
    Sources(tree, input).run();
    remove_all(tree);
  }
  REQUIRE(store.memory->counters().used_bytes == 0);
}
