// Tests the file of a kept checkpoint: a read returns the written bytes, or an error if the file
// has changed.
#include "fuse_target/keep/kept_file.h"

#include <fcntl.h>

#include <fstream>

#include "fuse_target/keep/keep_fixture.h"
#include "fuse_target/keep/kept_writer.h"
#include "fuse_target/store/range_set.h"

namespace ppmr {
namespace {

constexpr uint64_t kBlock = kKeptBlockBytes;

class KeptFileTest : public KeepTest {
 protected:
  // Writes a checkpoint 'c' with one file that has bytes in `stretches` and zeros elsewhere.
  void write(const std::vector<BlockStretch>& stretches, uint64_t size_bytes) {
    KeptIndex index;
    index.listing.owner = "tls-psk one";
    index.listing.nodes.resize(2);
    index.listing.nodes[0].name = "c";
    index.listing.nodes[1].name = "file";
    index.listing.nodes[1].type = wire::NodeType::kFile;
    index.listing.nodes[1].size_bytes = size_bytes;
    index.stretches = {{}, stretches};
    const UniqueFd file(::open(path().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(file);
    const uint64_t blocks = data_blocks_of(index);
    auto writer = KeptWriter::create(file, path(), "c", (*keys_)->first(), blocks);
    ASSERT_TRUE(writer);
    bytes_ = bytes_from(3, blocks * kBlock);
    ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(bytes_))));
    const Status finished = (*writer)->finish(index);
    ASSERT_TRUE(finished) << finished.error().message;
  }
  Result<KeptFile::Opened> open() { return open(*keys_); }
  Result<KeptFile::Opened> open(const Locked<KeepKeys>& keys) {
    return KeptFile::open(UniqueFd(::open(path().c_str(), O_RDONLY | O_CLOEXEC)), keys->all(),
                          path());
  }
  std::string path() const { return path_of("file"); }
  std::string content() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_content(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string bytes_;  // of the data blocks
};

TEST_F(KeptFileTest, ReturnsTheStoredBlocksOfEachStretch) {
  write({{1, 3}, {2000, 1500}}, 3500 * kBlock);
  auto opened = open();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->listing.owner, "tls-psk one");
  EXPECT_TRUE(opened->file->verify());
  const KeptBytes& kept = opened->listing.nodes[1].kept;
  ASSERT_EQ(kept.extents.size(), 2u);
  EXPECT_EQ(kept.extents[1].offset, 2000 * kBlock);
  EXPECT_EQ(kept.extents[1].place, kept.extents[0].place + 3 * kBlock);
  std::string read(1000, '\0');
  ASSERT_TRUE(
      kept.bytes->read(kept.extents[1].place + 5000, std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, bytes_.substr(3 * kBlock + 5000, 1000));
  EXPECT_EQ(kept.extent_at(kBlock - 1), nullptr);
  EXPECT_EQ(kept.extent_at(4 * kBlock), nullptr);
  EXPECT_EQ(kept.extent_at(4 * kBlock - 1), &kept.extents[0]);
}

TEST_F(KeptFileTest, ReadsNothingButDataBlocks) {
  write({{0, 2}}, 2 * kBlock);
  const auto opened = open();
  ASSERT_TRUE(opened);
  const KeptPlaces places(2);
  std::vector<std::byte> block(kBlock);
  EXPECT_TRUE(opened->file->read(places.first_data_block * kBlock, block));
  EXPECT_EQ(opened->file->read(0, block).error().errno_value, EINVAL);
  EXPECT_EQ(opened->file->read(KeptPlaces::kFirstChecksumBlock * kBlock, block).error().errno_value,
            EINVAL);
  EXPECT_EQ(opened->file->read(places.index_offset, block).error().errno_value, EINVAL);
  EXPECT_EQ(opened->file->read(UINT64_MAX - kBlock + 1, block).error().errno_value, EINVAL);
}

TEST_F(KeptFileTest, RefusesAFileThatWasTruncatedAnywhere) {
  write({{0, 1100}}, 1100 * kBlock);  // two blocks of checksums
  const std::string whole = content();
  ASSERT_TRUE(open());
  for (size_t blocks = (whole.size() - 1) / kBlock + 1; blocks-- > 0;) {
    std::filesystem::resize_file(path(), blocks * kBlock);
    const auto opened = open();
    ASSERT_FALSE(opened) << blocks;
    EXPECT_EQ(opened.error().errno_value, EBADMSG) << blocks;
  }
  for (const size_t missing : {size_t{1}, sizeof(KeptTrailer), sizeof(KeptTrailer) + 1}) {
    set_content(whole);
    std::filesystem::resize_file(path(), whole.size() - missing);
    EXPECT_FALSE(open()) << missing;
  }
  set_content(whole + '\0');
  EXPECT_FALSE(open());
  set_content(whole);
  EXPECT_TRUE(open());
}

TEST_F(KeptFileTest, NoticesAChangedByteInEveryBlock) {
  constexpr uint64_t kBlocks = 40;
  write({{0, kBlocks}}, kBlocks * kBlock);
  const std::string whole = content();
  const KeptPlaces places(kBlocks);
  uint32_t random = 1;
  for (uint64_t block = 0; block * kBlock < whole.size(); ++block) {
    random = random * 1664525 + 1013904223;
    std::string changed = whole;
    size_t at = block * kBlock + (random >> 8) % kBlock;
    if (block == 0) at = (random >> 8) % sizeof(KeptHeader);  // the rest of the block is unused
    if (at >= changed.size()) at = changed.size() - 1;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (random >> 29)));
    set_content(changed);
    const auto opened = open();
    const bool is_data = block >= 1 && block * kBlock < places.index_offset;
    EXPECT_EQ(opened.has_value(), is_data) << "byte " << at;
    if (!opened) continue;
    EXPECT_EQ(opened->file->verify().error().errno_value, EIO) << "byte " << at;
  }
}

TEST_F(KeptFileTest, DamageOfOneBlockLeavesTheOthersReadable) {
  write({{0, 10}}, 10 * kBlock);
  const KeptPlaces places(10);
  std::string changed = content();
  changed[(places.first_data_block + 4) * kBlock] ^= 1;
  set_content(changed);
  const auto opened = open();
  ASSERT_TRUE(opened);
  std::vector<std::byte> block(kBlock);
  for (uint64_t i = 0; i < 10; ++i) {
    const Status read = opened->file->read((places.first_data_block + i) * kBlock, block);
    EXPECT_EQ(read.has_value(), i != 4) << i;
  }
}

TEST_F(KeptFileTest, BlocksCannotBeExchanged) {
  write({{0, 2}}, 2 * kBlock);
  const KeptPlaces places(2);
  std::string changed = content();
  const size_t first = places.first_data_block * kBlock;
  std::swap_ranges(changed.begin() + first, changed.begin() + first + kBlock,
                   changed.begin() + first + kBlock);
  set_content(changed);
  const auto opened = open();
  ASSERT_TRUE(opened);
  EXPECT_FALSE(opened->file->verify());
}

TEST_F(KeptFileTest, NamesTheKeyThatIsMissing) {
  write({{0, 1}}, kBlock);
  const auto other = open(*keep_keys_of({8}));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().errno_value, EKEYREJECTED);
  EXPECT_NE(other.error().message.find(key_id((*keys_)->first())), std::string::npos)
      << other.error().message;
  EXPECT_TRUE(open(*keep_keys_of({8, 7}))) << "the second key of a key file decrypts, too";
  const UniqueFd file(::open(path().c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(KeptFile::name_in_header(file), "c") << "without any key";
}

TEST_F(KeptFileTest, HasNoPlainBytesOnTheDisk) {
  write({{0, 1}}, kBlock);
  EXPECT_EQ(content().find(bytes_.substr(0, 16)), std::string::npos);
  EXPECT_EQ(content().find("tls-psk one"), std::string::npos);
}

TEST_F(KeptFileTest, EachFileHasItsOwnKeys) {
  write({{0, 1}}, kBlock);
  const std::string first = content();
  write({{0, 1}}, kBlock);
  const size_t data = KeptPlaces(1).first_data_block * kBlock;
  EXPECT_NE(first.substr(data, kBlock), content().substr(data, kBlock));
}

// ---- The index ---------------------------------------------------------------------------------

KeptIndex small_index() {
  KeptIndex index;
  index.listing.nodes.resize(3);
  index.listing.nodes[0].name = "c";
  index.listing.nodes[1] = {.name = "file", .type = wire::NodeType::kFile, .size_bytes = 10'000};
  index.listing.nodes[2] = {
      .name = "link", .type = wire::NodeType::kSymlink, .link_target = "file"};
  index.stretches = {{}, {{0, 1}, {2, 1}}, {}};
  index.checksum_crc32c = {5};
  return index;
}

TEST(KeptIndex, SurvivesPacking) {
  KeptIndex index = small_index();
  index.listing.nodes[1].attributes = {0640, 1, 2, -3, 4};
  index.listing.nodes[1].ctime_ns = 9;
  const auto unpacked = unpack_index(*pack_index(index), 2);
  ASSERT_TRUE(unpacked) << unpacked.error().message;
  ASSERT_EQ(unpacked->listing.nodes.size(), 3u);
  const ListedNode& file = unpacked->listing.nodes[1];
  EXPECT_EQ(file.name, "file");
  EXPECT_EQ(file.size_bytes, 10'000u);
  EXPECT_EQ(file.attributes.mode, 0640u);
  EXPECT_EQ(file.attributes.atime_ns, -3);
  EXPECT_EQ(file.ctime_ns, 9);
  EXPECT_EQ(unpacked->listing.nodes[2].link_target, "file");
  ASSERT_EQ(unpacked->stretches[1].size(), 2u);
  EXPECT_EQ(unpacked->stretches[1][1].first, 2u);
}

TEST(KeptIndex, RefusesWhatCannotBeACheckpoint) {
  const auto refuses = [](const std::function<void(KeptIndex&)>& change, uint64_t blocks = 2) {
    KeptIndex index = small_index();
    change(index);
    const auto unpacked = unpack_index(*pack_index(index), blocks);
    return !unpacked && unpacked.error().errno_value == EBADMSG;
  };
  EXPECT_FALSE(refuses([](KeptIndex&) {}));
  EXPECT_TRUE(refuses([](KeptIndex&) {}, 3));
  for (const char* name : {"", ".", "..", "a/b"}) {
    EXPECT_TRUE(refuses([&](KeptIndex& index) { index.listing.nodes[1].name = name; })) << name;
  }
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.listing.nodes[2].name = "file"; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.listing.nodes[1].parent = 1; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.listing.nodes[2].parent = 1; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.listing.nodes[2].link_target = ""; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.listing.nodes[1].size_bytes = 8192; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.listing.nodes[1].size_bytes = UINT64_MAX; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.stretches[1] = {{0, 0}, {1, 2}}; }));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.stretches[0] = {{0, 1}}; }, 3));
  EXPECT_TRUE(refuses([](KeptIndex& index) { index.checksum_crc32c.clear(); }));
  EXPECT_TRUE(refuses(
      [](KeptIndex& index) { index.listing.nodes[0].type = static_cast<wire::NodeType>(9); }));
  EXPECT_FALSE(unpack_index("not an index", 0));
  EXPECT_FALSE(unpack_index("", 0));
}

TEST(BlocksOf, MergesTheBlocksThatRangesTouch) {
  const auto blocks =
      blocks_of({{0, 1}, {100, 200}, {4095, 4097}, {20'000, 20'000}, {40'960, 40'961}});
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].first, 0u);
  EXPECT_EQ(blocks[0].count, 2u);
  EXPECT_EQ(blocks[1].first, 10u);
  EXPECT_EQ(blocks[1].count, 1u);
}

}  // namespace
}  // namespace ppmr
