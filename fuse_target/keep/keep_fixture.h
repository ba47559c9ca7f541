// Test fixtures: an image tree that receives checkpoints, and a directory in which a Keeper keeps
// them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fuse_target/keep/keeper.h"

namespace ppmr {

// Bytes that depend on the seed and on the position.
inline std::string bytes_from(uint32_t seed, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<char>(seed >> 24);
  }
  return bytes;
}

struct SentFile {
  std::string name;
  std::map<uint64_t, std::string> parts;  // by offset; holes between them
  uint64_t size_bytes = 0;                // 0: the file ends with its last part
};

// A target without a mount: the store, and functions that send checkpoints to it. Threads: one.
class TargetStore {
 public:
  static constexpr SessionId kSession = 1;

  explicit TargetStore(size_t limit_bytes = 64 * kExtentBytes)
      : memory_(std::move(*StoreMemory::create({limit_bytes, 0, 0}, nullptr))) {
    tree.session_opened(kSession, "one", "tls-psk one");
  }
  ~TargetStore() { parking_.close(); }

  // Makes a checkpoint with these files, a link to the first one, and an empty directory.
  void receive(const std::string& name, const std::vector<SentFile>& files) {
    const uint64_t top = ++last_node_;
    wire::Claim claim;
    claim.node = top;
    claim.type = wire::NodeType::kDirectory;
    claim.attributes = {0750, 11, 12, 13, 14};
    claim.name = name;
    ASSERT_TRUE(tree.claim(kSession, claim));
    manifest_ = {{top, top, 0, wire::NodeType::kDirectory, 0750, 0, 0, name}};
    for (const SentFile& file : files) send(top, file);
    make(top, "link", wire::NodeType::kSymlink, files.empty() ? "nowhere" : files.front().name);
    make(top, "directory", wire::NodeType::kDirectory, "");
    for (const auto& entry : manifest_) ASSERT_TRUE(tree.manifest_entry(kSession, entry));
  }
  void seal() {
    const Status sealed =
        tree.seal(kSession, {1, manifest_.front().node, uint32_t(manifest_.size())});
    ASSERT_TRUE(sealed) << sealed.error().message;
  }
  void receive_and_seal(const std::string& name, const std::vector<SentFile>& files) {
    receive(name, files);
    seal();
  }

  StoredNodePointer find(const std::string& checkpoint, const std::string& file = "") {
    auto node = tree.look_up(tree.find(kRootInode), checkpoint, /*keep=*/false);
    return node && !file.empty() ? tree.look_up(node, file, /*keep=*/false) : node;
  }
  // Reads a whole file as the mount does. Holes are zeros.
  Result<std::string> read(const std::string& checkpoint, const std::string& file) {
    const auto node = find(checkpoint, file);
    if (!node) return failure(ENOENT, "no such file");
    const uint64_t size = node->file->facts().size_bytes;
    std::string bytes;
    ReadPlan plan;
    while (bytes.size() < size) {
      auto ready = node->file->read(bytes.size(), 100'000, plan);
      if (!ready) return failure(ready.error());
      if (Status made = plan.make_ready(); !made) return failure(made.error());
      for (const iovec& buffer : plan.buffers()) {
        bytes.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
      }
    }
    return bytes;
  }
  bool wait_until(const std::string& name, KeepState state) {
    tree.keep_soon(name);
    const auto report = tree.wait_for(
        name, [&](const auto& found) { return found && found->keep == state; },
        std::chrono::seconds(60));
    return report && report->keep == state;
  }
  // Waits until the keeper has failed to keep the checkpoint. Returns false if it has not failed
  // within a minute.
  bool wait_until_refused(const std::string& name) {
    tree.keep_soon(name);
    const auto report = tree.wait_for(
        name, [&](const auto& found) { return found && !found->keep_error.empty(); },
        std::chrono::seconds(60));
    return report && !report->keep_error.empty();
  }

  StoreMemory& memory() { return *memory_; }

 private:
  uint64_t make(uint64_t parent, const std::string& name, wire::NodeType type,
                const std::string& link_target) {
    wire::Make message;
    message.parent = parent;
    message.node = ++last_node_;
    message.type = type;
    message.attributes = {0640, 1, 2, 3, 4};
    message.name = name;
    message.link_target = link_target;
    EXPECT_TRUE(tree.make(kSession, message));
    manifest_.push_back({manifest_.front().node, message.node, parent, type, 0640, 0, 0, name});
    return message.node;
  }
  void send(uint64_t top, const SentFile& file) {
    const NodeKey key{kSession, make(top, file.name, wire::NodeType::kFile, "")};
    uint64_t end = 0;
    for (const auto& [offset, bytes] : file.parts) {
      for (size_t at = 0; at < bytes.size(); at += kChunkMaxBytes) {
        const auto part = std::string_view(bytes).substr(at, kChunkMaxBytes);
        const auto length = static_cast<uint32_t>(part.size());
        ASSERT_TRUE(tree.announced(key, offset + at, length));
        auto landing = tree.reserve(key, offset + at, length);
        ASSERT_TRUE(landing) << landing.error().message;
        const char* from = part.data();
        for (uint32_t i = 0; i < landing->piece_count; ++i) {
          std::memcpy(landing->pieces[i].data, from, landing->pieces[i].length);
          from += landing->pieces[i].length;
        }
        ASSERT_TRUE(tree.land(*landing, 1));
        ++manifest_.back().digest;
      }
      end = offset + bytes.size();
    }
    const uint64_t size = std::max(end, file.size_bytes);
    if (size > end) {
      ASSERT_TRUE(tree.truncate(kSession, {key.node, size}));
      manifest_.back().digest = 0;
    }
    manifest_.back().size_bytes = size;
    ASSERT_TRUE(tree.closed(kSession, {key.node, size, {0640, 1, 2, 3, 4}}));
  }

  uint64_t last_node_ = 0;
  std::vector<wire::ManifestEntry> manifest_;
  std::unique_ptr<StoreMemory> memory_;
  // The keeper that gives memory back when the store is full; null: no keeper does.
  Keeper* giver_ = nullptr;
  const ImageStorage storage_{*memory_, nullptr, false,
                              [this] { return giver_ != nullptr && giver_->give_back_oldest(); }};
  ParkingLot parking_{[](pid_t) { return false; }};

 public:
  void give_back_from(Keeper* keeper) { giver_ = keeper; }
  ImageTree tree{storage_, parking_};
};

inline LockedKeepKeys keep_keys_of(std::vector<uint8_t> fills) {
  const auto keys = std::make_shared<Locked<KeepKeys>>();
  (*keys)->count = fills.size();
  for (size_t i = 0; i < fills.size(); ++i) (*keys)->keys[i].fill(fills[i]);
  return keys;
}

class KeepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::canonical(::testing::TempDir()) / "keep_test-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }
  KeeperOptions options() const {
    return {.directory = directory_, .retention = {}, .retry_after = std::chrono::milliseconds(1)};
  }

  std::string directory_;
  LockedKeepKeys keys_ = keep_keys_of({7});
};

}  // namespace ppmr
