// The keys of memory regions whose real number differs from the number that programs know.
// Immutable: each move makes a new table. The real number of a key that is not in the table is the
// same. So a process that has not moved, and has no moved peer, has an empty table and looks up no
// keys.
//
// A number in the table stays taken until the next move, even if its memory region does not exist
// any more: a peer may still have the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "verbs_library/protocol/message.h"

namespace ppmr::verbs {

class KeyTable {
 public:
  KeyTable() = default;
  explicit KeyTable(std::span<const KeyPair> keys) {
    if (keys.empty()) return;
    size_t size = 8;
    while (size < keys.size() * 2) size *= 2;
    slots_.resize(size);
    for (const KeyPair& key : keys) {
      Slot* slot = &slots_[first_slot(key.shown)];
      while (slot->is_used && slot->key.shown != key.shown) slot = next(slot);
      *slot = {true, key};
    }
  }

  bool is_empty() const { return slots_.empty(); }

  uint32_t real(uint32_t shown) const {
    const Slot* slot = find(shown);
    return slot ? slot->key.real : shown;
  }

  bool is_taken(uint32_t shown) const { return find(shown) != nullptr; }

 private:
  struct Slot {
    bool is_used = false;
    KeyPair key;
  };

  size_t first_slot(uint32_t key) const { return ((key * 2654435761u) >> 7) & (slots_.size() - 1); }
  const Slot* next(const Slot* slot) const {
    return slot + 1 == slots_.data() + slots_.size() ? slots_.data() : slot + 1;
  }
  Slot* next(Slot* slot) { return const_cast<Slot*>(std::as_const(*this).next(slot)); }
  const Slot* find(uint32_t shown) const {
    if (slots_.empty()) return nullptr;
    for (const Slot* slot = &slots_[first_slot(shown)]; slot->is_used; slot = next(slot)) {
      if (slot->key.shown == shown) return slot;
    }
    return nullptr;
  }

  std::vector<Slot> slots_;  // at most half full, so a search ends
};

}  // namespace ppmr::verbs
