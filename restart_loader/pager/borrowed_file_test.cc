// Tests the borrower with a daemon that gives the answers that the test chooses. For the real
// daemon see tests/e2e/test_lend.py.
#include "restart_loader/pager/borrowed_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/mapped_memory.h"
#include "daemon/control/control_socket.h"

namespace ppmr {
namespace {

using nlohmann::json;

class BorrowedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "borrowed_file_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    server_ = std::move(*ControlServer::create({.directory = path + "/ppmr"}));
    server_->serve([this](const json& request, const ControlClient&, PassedDescriptors& passed) {
      std::vector<UniqueFd>& descriptors = passed.to_send;
      json answer = answer_(request, descriptors);
      if (request.at("loan") >= 0) {
        EXPECT_EQ(request.at("loan"), kLoan);
        return answer;
      }
      answer["loan"] = kLoan;
      int ends[2];
      EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
      loan_ = UniqueFd(ends[0]);
      descriptors.emplace_back(ends[1]);
      return answer;
    });
    for (MappedMemory& region : regions_) {
      region = std::move(*MappedMemory::create_shared(kHugePageSizeBytes));
      for (size_t i = 0; i < region.bytes().size(); ++i) {
        region.bytes()[i] = std::byte(i * 7 + static_cast<size_t>(&region - regions_));
      }
    }
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(base_);
  }
  void pass(int region, std::vector<UniqueFd>& descriptors) {
    descriptors.emplace_back(fcntl(regions_[region].descriptor(), F_DUPFD_CLOEXEC, 0));
  }
  Result<std::unique_ptr<BorrowedFile>> borrow() {
    auto file = std::make_unique<BorrowedFile>(server_->path(), "c", "file");
    if (auto borrowed = file->borrow_all(); !borrowed) return failure(borrowed.error());
    return file;
  }
  bool loan_has_ended() {
    pollfd fd{loan_.get(), 0, 0};
    poll(&fd, 1, 0);
    return (fd.revents & POLLHUP) != 0;
  }

  static constexpr int kLoan = 77;
  std::string base_;
  MappedMemory regions_[2];
  std::function<json(const json&, std::vector<UniqueFd>&)> answer_;
  UniqueFd loan_;
  std::vector<std::vector<std::byte>> copies_;  // copies of the regions
  std::unique_ptr<ControlServer> server_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(16 << 10);
};

TEST_F(BorrowedFileTest, ShowsPiecesOfSeveralPartsAndHoles) {
  answer_ = [&](const json& request, std::vector<UniqueFd>& descriptors) {
    EXPECT_EQ(request.at("op"), "lend");
    EXPECT_EQ(request.at("checkpoint"), "c");
    EXPECT_EQ(request.at("file"), "file");
    json answer = {{"ok", true}, {"inode", 9}, {"size", 100'000}};
    if (request.at("offset") == 0) {
      pass(0, descriptors);
      answer["end"] = 2000;
      answer["pieces"] = {{10, 90, 0, 500}, {100, 900, 0, 5000}};
    } else {
      EXPECT_EQ(request.at("offset"), 2000);
      pass(1, descriptors);
      pass(0, descriptors);
      answer["end"] = 100'000;
      answer["pieces"] = {{3000, 10, 0, 0}, {3010, 10, 1, 4096}};
    }
    return answer;
  };
  auto file = borrow();
  ASSERT_TRUE(file) << file.error().message;
  server_.reset();  // the daemon has ended
  for (MappedMemory& region : regions_) {
    const std::vector<std::byte> copy(region.bytes().begin(), region.bytes().end());
    copies_.push_back(copy);
    region = MappedMemory();
  }
  const auto expect = [&](uint64_t offset, uint64_t length, size_t region, size_t from,
                          size_t expected) {
    const auto bytes = (*file)->at(offset, length, {});
    ASSERT_TRUE(bytes) << bytes.error().message;
    ASSERT_EQ(bytes->size(), expected) << offset;
    EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(),
                           copies_[region].begin() + static_cast<ptrdiff_t>(from)));
  };
  EXPECT_EQ((*file)->end_bytes(), 100'000u);
  expect(10, 50, 0, 500, 50);
  expect(10, 1000, 0, 500, 90);
  expect(50, 1000, 0, 540, 50);
  expect(100, UINT64_MAX, 0, 5000, 900);
  expect(3005, 100, 1, 5, 5);
  expect(3010, 100, 0, 4096, 10);
  for (const auto& [offset, length] : {std::pair{0, 10}, {1000, 2000}, {3020, 65536}}) {
    const auto zeros = (*file)->at(static_cast<uint64_t>(offset), 1 << 20, {});
    ASSERT_TRUE(zeros);
    EXPECT_EQ(zeros->size(), static_cast<size_t>(length));
    EXPECT_TRUE(std::all_of(zeros->begin(), zeros->end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
  EXPECT_EQ((*file)->at(99'999, 10, {})->size(), 1u);
  EXPECT_TRUE((*file)->at(100'000, 10, {})->empty());
  EXPECT_TRUE((*file)->at(UINT64_MAX, 10, {})->empty());
  EXPECT_FALSE(loan_has_ended());
  file->reset();
  EXPECT_TRUE(loan_has_ended());
}

TEST_F(BorrowedFileTest, BorrowsBytesAsTheyArrive) {
  uint64_t arrived = 0;
  int asked = 0;
  answer_ = [&](const json& request, std::vector<UniqueFd>& descriptors) {
    const uint64_t offset = request.at("offset");
    EXPECT_EQ(request.at("arrived"), arrived < 100'000);
    ++asked;
    pass(0, descriptors);
    json answer = {{"ok", true}, {"inode", 9}, {"size", 100'000}, {"end", arrived}};
    answer["pieces"] = json::array();
    if (arrived > offset) answer["pieces"].push_back({offset, arrived - offset, 0, offset});
    return answer;
  };
  BorrowedFile file(server_->path(), "c", "file");
  ASSERT_TRUE(file.borrow_arrived());
  EXPECT_EQ(file.end_bytes(), 0u);
  EXPECT_TRUE(file.at(0, 10, {})->empty());
  arrived = 4096;
  ASSERT_TRUE(file.borrow_arrived());
  EXPECT_EQ(asked, 3) << "again until nothing more has arrived";
  EXPECT_EQ(file.end_bytes(), 4096u);
  const auto first = *file.at(4000, 1000, {});
  EXPECT_EQ(first.size(), 96u);
  EXPECT_TRUE(file.at(4096, 10, {})->empty());
  arrived = 100'000;
  ASSERT_TRUE(file.borrow_all());
  EXPECT_EQ(file.end_bytes(), 100'000u);
  EXPECT_EQ(file.at(4096, UINT64_MAX, {})->size(), 100'000u - 4096);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), regions_[0].bytes().begin() + 4000));
}

TEST_F(BorrowedFileTest, VerifiesSpilledBlocks) {
  std::string name = base_ + "/spill";
  std::vector<std::byte> bytes(16 * 4096);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i / 3);
  const UniqueFd spill(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const auto made = BlockCipher::with_new_key().value();
  const BlockCipher& cipher = *made;
  std::vector<std::byte> encrypted(bytes.size());
  ASSERT_TRUE(cipher.encrypt(0, bytes, encrypted.data()));
  ASSERT_EQ(pwrite(spill.get(), encrypted.data(), encrypted.size(), 0),
            static_cast<ssize_t>(encrypted.size()));
  answer_ = [&](const json&, std::vector<UniqueFd>& descriptors) {
    descriptors.emplace_back(open(name.c_str(), O_RDONLY | O_CLOEXEC));
    descriptors.emplace_back(open((name + ".crc").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(write(descriptors.back().get(), cipher.key().data(), cipher.key().size()),
              static_cast<ssize_t>(cipher.key().size()));
    for (size_t block = 2; block < 16; ++block) {
      const uint32_t checksum = crc32c(std::span(bytes).subspan(block * 4096, 4096));
      EXPECT_EQ(write(descriptors.back().get(), &checksum, 4), 4);
    }
    return json{{"ok", true},
                {"inode", 9},
                {"size", bytes.size()},
                {"end", bytes.size()},
                {"spill", {{"place", 0}, {"first_block", 2}}},
                {"pieces", {{10'000, 50'000, 0, 10'000}}}};
  };
  auto file = borrow();
  ASSERT_TRUE(file) << file.error().message;
  for (uint64_t at = 10'000; at < 60'000;) {
    const auto part = (*file)->at(at, 1 << 20, scratch_);
    ASSERT_TRUE(part) << part.error().message;
    ASSERT_FALSE(part->empty());
    ASSERT_TRUE(std::equal(part->begin(), part->end(), bytes.begin() + static_cast<ptrdiff_t>(at)));
    at += part->size();
  }
  EXPECT_FALSE((*file)->at(10'000, 10, std::span(scratch_).first(100)));
  ASSERT_EQ(pwrite(spill.get(), "damage", 6, 5 * 4096 + 77), 6);
  EXPECT_TRUE((*file)->at(4 * 4096, 4096, scratch_));
  const auto damaged = (*file)->at(5 * 4096, 4096, scratch_);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().errno_value, EIO);
  ASSERT_EQ(ftruncate(spill.get(), 8 * 4096), 0);
  EXPECT_EQ((*file)->at(9 * 4096, 4096, scratch_).error().errno_value, EIO);
}

TEST_F(BorrowedFileTest, ReadsKeptBytesFromTheirPlaceOnTheDisk) {
  constexpr uint64_t kFirst = 100;
  std::vector<std::byte> bytes(5 * 4096);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i / 5);
  const UniqueFd kept(open((base_ + "/kept").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const auto cipher = BlockCipher::with_new_key().value();
  std::vector<std::byte> encrypted(bytes.size());
  ASSERT_TRUE(cipher->encrypt(kFirst, bytes, encrypted.data()));
  ASSERT_EQ(pwrite(kept.get(), encrypted.data(), encrypted.size(), kFirst * 4096),
            static_cast<ssize_t>(encrypted.size()));
  uint64_t place = kFirst * 4096;
  answer_ = [&](const json&, std::vector<UniqueFd>& descriptors) {
    descriptors.emplace_back(fcntl(kept.get(), F_DUPFD_CLOEXEC, 0));
    descriptors.emplace_back(
        open((base_ + "/kept.crc").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_EQ(write(descriptors.back().get(), cipher->key().data(), cipher->key().size()),
              static_cast<ssize_t>(cipher->key().size()));
    for (size_t block = 0; block < 5; ++block) {
      const uint32_t checksum = crc32c(std::span(bytes).subspan(block * 4096, 4096));
      EXPECT_EQ(write(descriptors.back().get(), &checksum, 4), 4);
    }
    return json{{"ok", true},
                {"inode", 9},
                {"size", 40'000},
                {"end", 40'000},
                {"spill", {{"place", 0}, {"first_block", kFirst}}},
                {"pieces", {{8192, 20'000, 0, place}}}};
  };
  auto file = borrow();
  ASSERT_TRUE(file) << file.error().message;
  const auto part = (*file)->at(8192 + 5000, 4096, scratch_);
  ASSERT_TRUE(part) << part.error().message;
  ASSERT_FALSE(part->empty());
  EXPECT_TRUE(std::equal(part->begin(), part->end(), bytes.begin() + 5000));
  EXPECT_EQ(std::to_integer<int>((*file)->at(30'000, 1, scratch_)->front()), 0);
  for (const uint64_t wrong : {place + 1, place - 4096, place + 4096, UINT64_MAX - 4095}) {
    place = wrong;
    EXPECT_EQ(borrow().error().errno_value, EPROTO) << wrong;
  }
}

TEST_F(BorrowedFileTest, PassesARefusalOn) {
  answer_ = [](const json&, std::vector<UniqueFd>&) {
    return refusal({EBUSY, "the checkpoint is not sealed"});
  };
  const auto file = borrow();
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().errno_value, EBUSY);
  EXPECT_NE(file.error().message.find("not sealed"), std::string::npos);
}

TEST_F(BorrowedFileTest, RefusesPartsOfDifferentFiles) {
  answer_ = [](const json& request, std::vector<UniqueFd>&) {
    const uint64_t offset = request.at("offset");
    return json{{"ok", true},
                {"inode", offset},
                {"size", 100},
                {"end", offset + 50},
                {"pieces", json::array()}};
  };
  EXPECT_EQ(borrow().error().errno_value, ESTALE);
}

TEST_F(BorrowedFileTest, RefusesMalformedAnswers) {
  const json good = {
      {"ok", true}, {"inode", 9}, {"size", 100}, {"end", 100}, {"pieces", {{10, 20, 0, 0}}}};
  json answer = good;
  answer_ = [&](const json&, std::vector<UniqueFd>& descriptors) {
    pass(0, descriptors);
    return answer;
  };
  ASSERT_TRUE(borrow());
  const std::vector<std::pair<std::string, json>> changes = {
      {"end", 0},
      {"end", 101},
      {"size", "many"},
      {"pieces", {{10, 20, 1, 0}}},                        // the loan's own end
      {"pieces", {{10, 20, 2, 0}}},                        // there is no such descriptor
      {"pieces", {{10, 20, 0, kHugePageSizeBytes - 10}}},  // ends behind its memory
      {"pieces", {{10, 20, 0, UINT64_MAX - 5}}},           // overflows
      {"pieces", {{90, 20, 0, 0}}},                        // ends behind the file
      {"pieces", {{10, 0, 0, 0}}},                         // empty
      {"pieces", {{10, 20}}},                              // too few fields
      {"spill", {{"place", 0}, {"first_block", 0}}},       // no checksums
  };
  for (const auto& [field, value] : changes) {
    answer = good;
    answer[field] = value;
    const auto file = borrow();
    ASSERT_FALSE(file) << field << " " << value;
    EXPECT_EQ(file.error().errno_value, EPROTO) << field << " " << value;
  }
}

}  // namespace
}  // namespace ppmr
