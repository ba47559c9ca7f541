// Tests a page reader together with the daemon's end, in one process.
#include "processes/memory/page_reader.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>

#include "base/mapped_memory.h"
#include "processes/memory/page_index.h"
#include "processes/memory/read_messages.h"
#include "processes/memory/remote_memory.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;
constexpr size_t kPages = 16;
constexpr std::chrono::milliseconds kPatience{20'000};

class PageReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "page_reader_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    pool_ =
        std::move(*MappedMemory::create_shared(kHugePageSizeBytes, MappedMemory::Others::kWrite));
    memory_ = std::move(*MappedMemory::create(kPages * kPage));
    for (size_t i = 0; i < kPages; ++i) {
      std::memset(memory_.bytes().data() + i * kPage, static_cast<int>(i + 1), kPage);
    }
    const auto start = reinterpret_cast<uint64_t>(memory_.bytes().data());
    index_ = {kPages * kPage, {{1, getpid(), {{start, start + kPages * kPage, 0}}}}};
    for (size_t i = 0; i < kPageReaderSocketsMax; ++i) {
      int ends[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
      ours_.emplace_back(ends[0]);
      theirs_.emplace_back(ends[1]);
    }
  }
  void TearDown() override {
    ours_.clear();
    remote_.reset();
    if (served_.valid()) {
      EXPECT_EQ(served_.wait_for(kPatience), std::future_status::ready) << "outlives its daemon";
    }
    std::filesystem::remove_all(directory_);
  }
  std::string index_file() const { return directory_ + "/memory-index"; }
  void start() {
    ASSERT_TRUE(write_page_index(index_file(), index_));
    served_ = std::async(std::launch::async, [this] {
      return serve_page_reads(std::move(theirs_), {index_file(), ""});
    });
    ASSERT_TRUE(lend_pool(ours_[0], pool_.descriptor()));
  }
  RemoteMemory& remote() {
    if (!remote_)
      remote_.emplace(std::move(ours_[0]), pool_.bytes(), kPatience, [] { return false; });
    return *remote_;
  }
  // Sends these bytes, and returns the error number of the reply.
  int errno_of(const void* bytes, size_t size) {
    EXPECT_EQ(send(ours_[1].get(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    ReadReply reply;
    EXPECT_EQ(recv(ours_[1].get(), &reply, sizeof(reply), 0), static_cast<ssize_t>(sizeof(reply)));
    return reply.errno_value;
  }
  int errno_of(const ReadRequest& request) { return errno_of(&request, sizeof(request)); }

  std::string directory_;
  MappedMemory pool_;
  MappedMemory memory_;
  PageIndex index_;
  std::vector<UniqueFd> ours_, theirs_;
  std::optional<RemoteMemory> remote_;
  std::future<Status> served_;
};

TEST_F(PageReaderTest, FillsPartsOfThePool) {
  start();
  const auto slot = pool_.bytes().subspan(64 * kPage, 4 * kPage);
  const Status read = remote().read(3 * kPage, slot);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(std::memcmp(slot.data(), memory_.bytes().data() + 3 * kPage, slot.size()), 0);
  EXPECT_EQ(pool_.bytes()[64 * kPage - 1], std::byte{0});
  EXPECT_EQ(pool_.bytes()[68 * kPage], std::byte{0});
}

TEST_F(PageReaderTest, ServesEachSocketWithAThread) {
  start();
  std::vector<std::future<Status>> reads;
  for (size_t i = 0; i < ours_.size(); ++i) {
    reads.push_back(std::async(std::launch::async, [this, i] {
      RemoteMemory remote(std::move(ours_[i]), pool_.bytes(), kPatience, [] { return false; });
      return remote.read(i * kPage, pool_.bytes().subspan(i * kPage, kPage));
    }));
  }
  for (auto& read : reads) {
    const Status done = read.get();
    EXPECT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(std::memcmp(pool_.bytes().data(), memory_.bytes().data(), ours_.size() * kPage), 0);
}

TEST_F(PageReaderTest, RefusesTooFewOrTooManySockets) {
  std::vector<UniqueFd> one;
  one.push_back(std::move(theirs_[0]));
  EXPECT_EQ(serve_page_reads(std::move(one), {index_file(), {}}).error().errno_value, EINVAL);
  std::vector<UniqueFd> many(kPageReaderSocketsMax + 1);
  EXPECT_EQ(serve_page_reads(std::move(many), {index_file(), {}}).error().errno_value, EINVAL);
}

TEST(PageReaderSockets, AreMoreForAFrozenTreeOnManyProcessors) {
  EXPECT_EQ(page_reader_sockets(2, false), 2u);
  EXPECT_EQ(page_reader_sockets(16, false), 9u);
  EXPECT_EQ(page_reader_sockets(1000, false), kPageReaderSocketsMax);
  EXPECT_EQ(page_reader_sockets(16, true), 2u);
}

TEST_F(PageReaderTest, ReadsOnlyMemoryThatTheIndexLists) {
  start();
  EXPECT_EQ(errno_of({kPages * kPage, kPage, 0}), EINVAL);
  EXPECT_EQ(errno_of({(kPages - 1) * kPage, 2 * kPage, 0}), EINVAL);
  EXPECT_EQ(errno_of({UINT64_MAX - kPage + 1, kPage, 0}), EINVAL);
  EXPECT_EQ(errno_of({0, kPage, 0}), 0);
}

TEST_F(PageReaderTest, WritesOnlyIntoThePool) {
  start();
  EXPECT_EQ(errno_of({0, kPage, kHugePageSizeBytes}), EINVAL);
  EXPECT_EQ(errno_of({0, 2 * kPage, kHugePageSizeBytes - kPage}), EINVAL);
  EXPECT_EQ(errno_of({0, kPage, UINT64_MAX - kPage + 1}), EINVAL);
  EXPECT_EQ(errno_of({0, UINT64_MAX, kPage}), EINVAL);
  EXPECT_EQ(errno_of({0, kPage, kHugePageSizeBytes - kPage}), 0);
}

TEST_F(PageReaderTest, RefusesMalformedRequestsAndContinues) {
  start();
  const ReadRequest request{0, kPage, 0};
  EXPECT_EQ(errno_of(&request, sizeof(request) - 1), EPROTO);
  const std::string longer(sizeof(request) + 1, 'x');
  EXPECT_EQ(errno_of(longer.data(), longer.size()), EPROTO);
  EXPECT_EQ(errno_of(request), 0);
}

TEST_F(PageReaderTest, RepliesWithTheErrorOfTheIndex) {
  index_.memory_bytes += kPage;
  start();
  const Status read = remote().read(0, pool_.bytes().first(kPage));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EPROTO);
  EXPECT_NE(read.error().message.find("index"), std::string::npos) << read.error().message;
}

TEST_F(PageReaderTest, EndOfTheReaderIsAnError) {
  theirs_.clear();
  const Status read = remote().read(0, pool_.bytes().first(kPage));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EPIPE) << read.error().message;
}

TEST_F(PageReaderTest, EndOfTheReaderDuringAReadIsAnError) {
  auto waiting = std::async(std::launch::async,
                            [this] { return remote().read(0, pool_.bytes().first(kPage)); });
  ReadRequest request;
  ASSERT_EQ(recv(theirs_[0].get(), &request, sizeof(request), 0),
            static_cast<ssize_t>(sizeof(request)));
  theirs_.clear();
  const Status read = waiting.get();
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("has ended"), std::string::npos) << read.error().message;
}

TEST_F(PageReaderTest, ReaderThatDoesNotReplyCausesATimeout) {
  RemoteMemory impatient(std::move(ours_[0]), pool_.bytes(), std::chrono::milliseconds(1),
                         [] { return false; });
  EXPECT_EQ(impatient.read(0, pool_.bytes().first(kPage)).error().errno_value, ETIMEDOUT);
  EXPECT_TRUE(impatient.take_unanswered()) << "the slot was given away while it is written to";
  bool gives_up = false;
  RemoteMemory patient(std::move(ours_[1]), pool_.bytes(), std::nullopt,
                       [&] { return std::exchange(gives_up, true); });
  EXPECT_EQ(patient.read(0, pool_.bytes().first(kPage)).error().errno_value, ECANCELED);
}

TEST_F(PageReaderTest, MalformedReplyIsAnError) {
  const char text[] = "short";
  ASSERT_GT(send(theirs_[0].get(), text, sizeof(text), 0), 0);
  EXPECT_EQ(remote().read(0, pool_.bytes().first(kPage)).error().errno_value, EPROTO);
}

}  // namespace
}  // namespace ppmr
