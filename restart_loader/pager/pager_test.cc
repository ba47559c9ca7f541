// Tests the pager with real userfaultfds: a child process acts as criu restore and as the restored
// task.
#include "restart_loader/pager/pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/message_socket.h"
#include "base/unique_fd.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"
#include "restart_loader/pager/page_images.h"

namespace ppmr {
namespace {

constexpr uint64_t kPages = 800;
// The last pages are not in the images.
constexpr uint64_t kPagesInImages = 700;
constexpr int32_t kPid = 17;
constexpr uint32_t kFileLocksMagic = 0x54323616;

uint64_t word_of(uint64_t page) { return page * 0x9E3779B97F4A7C15ULL + 1; }
uint64_t expected(uint64_t page) { return page < kPagesInImages ? word_of(page) : 0; }

UniqueFd open_userfaultfd() {
  UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  uffdio_api api{.api = UFFD_API,
                 .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
                             UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP,
                 .ioctls = 0};
  if (fd && ioctl(fd.get(), UFFDIO_API, &api) != 0) fd.reset();
  return fd;
}

// Ends a child. _exit() would have ThreadSanitizer report the threads of the pager that had
// finished at the fork, but were not joined.
[[noreturn]] void end_task(int status) {
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

// The functions that run in the child.
class Restored {
 public:
  Restored(std::byte* memory, const std::string& socket_path) : memory_(memory) {
    address_.sun_family = AF_UNIX;
    socket_path.copy(address_.sun_path, sizeof(address_.sun_path) - 1);
  }

  void begin() {
    uffd_ = open_userfaultfd();
    uffdio_register range{
        .range = {.start = reinterpret_cast<uint64_t>(memory_), .len = kPages * kPageBytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
        .ioctls = 0};
    if (!uffd_ || ioctl(uffd_.get(), UFFDIO_REGISTER, &range) != 0) end_task(101);
    socket_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)) != 0) {
      end_task(109);
    }
    send_number(-5);  // a zombie
    send_number(kPid);
    send_descriptor();
  }
  void finish() {
    send_number(static_cast<int32_t>(kRestoreFinished));
    // CRIU does not keep its socket and userfaultfds open, either.
    socket_.reset();
    uffd_.reset();
  }
  uint64_t word(uint64_t page) const {
    uint64_t word = 0;
    std::memcpy(&word, memory_ + page * kPageBytes, sizeof(word));
    return word;
  }
  void check(uint64_t first, uint64_t last, uint64_t step = 1) const {
    for (uint64_t page = first; page < last; page += step) {
      if (word(page) != expected(page)) end_task(102);
    }
  }
  std::byte* page(uint64_t number) const { return memory_ + number * kPageBytes; }

 private:
  void send_number(int32_t number) const {
    if (send(socket_.get(), &number, sizeof(number), MSG_NOSIGNAL) != sizeof(number)) end_task(103);
  }
  void send_descriptor() const {
    const std::byte byte{};
    if (!send_bytes(socket_.get(), std::span(&byte, 1), std::span(&uffd_, 1), "the pager")) {
      end_task(104);
    }
  }

  std::byte* const memory_;
  sockaddr_un address_{};
  UniqueFd uffd_;
  UniqueFd socket_;
};

int end_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

constexpr uint32_t kLazy = 2;
constexpr uint32_t kLazyAndPresent = 6;

size_t open_userfaultfds() {
  size_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const auto target = std::filesystem::read_symlink(entry, error);
    if (!error && target.string().find("userfaultfd") != std::string::npos) ++count;
  }
  return count;
}

class PagerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!open_userfaultfd()) GTEST_SKIP() << "userfaultfd with events needs root";
    std::string path = "/tmp/pager-XXXXXX";  // short enough for the address of a socket
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    void* memory = mmap(nullptr, kPages * kPageBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    // The task's memory is one mapping of its own. If the kernel merged it with a neighbour, it
    // could not be moved as a whole.
    madvise(memory, kPages * kPageBytes, MADV_NOHUGEPAGE);
    write_images(kPagesInImages);
  }
  void TearDown() override {
    if (directory_.empty()) return;
    munmap(memory_, kPages * kPageBytes);
    std::filesystem::remove_all(directory_);
  }

  // `flags`: the flags of the entries, see include/pagemap.h of CRIU.
  void write_images(uint64_t pages_in_file, uint32_t flags = kLazyAndPresent) {
    std::ofstream pagemap(directory_ + "/pagemap-17.img");
    const auto number = [&](uint32_t value) {
      pagemap.write(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    number(0x54564319);
    number(0x56084025);
    criu::pagemap_head head;
    head.set_pages_id(1);
    number(static_cast<uint32_t>(head.ByteSizeLong()));
    pagemap << head.SerializeAsString();
    // Entries of 1, 2, 3 ... pages, as a sparse process has them.
    for (uint64_t page = 0, count = 1; page < kPagesInImages; page += count, ++count) {
      criu::pagemap_entry entry;
      entry.set_vaddr(reinterpret_cast<uint64_t>(memory_) + page * kPageBytes);
      entry.set_compat_nr_pages(0);
      entry.set_nr_pages(std::min(count, kPagesInImages - page));
      entry.set_flags(flags);
      number(static_cast<uint32_t>(entry.ByteSizeLong()));
      pagemap << entry.SerializeAsString();
    }
    std::ofstream pages(directory_ + "/pages-1.img");
    std::vector<char> bytes(kPageBytes);
    for (uint64_t page = 0; page < pages_in_file; ++page) {
      const uint64_t word = word_of(page);
      std::memcpy(bytes.data(), &word, sizeof(word));
      pages.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
  }

  // Moves the pages to a memory file, the upper half first.
  void write_memory_file() {
    write_images(kPagesInImages, kLazy);
    const uint64_t half = kPagesInImages / 2;
    const uint64_t start = reinterpret_cast<uint64_t>(memory_);
    const uint64_t middle = start + half * kPageBytes;
    const uint64_t upper_bytes = (kPagesInImages - half) * kPageBytes;
    const PageIndex index{
        kPagesInImages * kPageBytes,
        {{17, 1, {{start, middle, upper_bytes}, {middle, middle + upper_bytes, 0}}}}};
    ASSERT_TRUE(write_page_index(directory_ + "/" + kPageIndexFile, index));
    std::ifstream pages(directory_ + "/pages-1.img");
    std::vector<char> bytes(kPagesInImages * kPageBytes);
    pages.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::filesystem::remove(directory_ + "/pages-1.img");
    memory_file_ = directory_ + "/memory";
    std::ofstream file(memory_file_);
    const auto lower_bytes = static_cast<std::streamsize>(half * kPageBytes);
    file.write(bytes.data() + lower_bytes, static_cast<std::streamsize>(upper_bytes));
    file.write(bytes.data(), lower_bytes);
  }

  // Moves the pages to a memory file, the last page first. So each page is copied alone.
  void write_reversed_memory_file() {
    write_images(kPagesInImages, kLazy);
    std::filesystem::remove(directory_ + "/pages-1.img");
    const uint64_t start = reinterpret_cast<uint64_t>(memory_);
    PageIndex index{kPagesInImages * kPageBytes, {{17, 1, {}}}};
    std::vector<char> bytes(kPagesInImages * kPageBytes);
    for (uint64_t page = 0; page < kPagesInImages; ++page) {
      const uint64_t at = start + page * kPageBytes;
      const uint64_t place = (kPagesInImages - 1 - page) * kPageBytes;
      index.tasks[0].ranges.push_back({at, at + kPageBytes, place});
      const uint64_t word = word_of(page);
      std::memcpy(bytes.data() + place, &word, sizeof(word));
    }
    ASSERT_TRUE(write_page_index(directory_ + "/" + kPageIndexFile, index));
    memory_file_ = directory_ + "/memory";
    std::ofstream(memory_file_).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  // Serves a task that runs `body`. Returns the pager's result. Sets `task_end_` to how the task
  // ended.
  template <typename Body>
  Result<PagerCounters> serve(const Body& body) {
    Restored task(memory_, directory_ + "/" + kPagerSocket);
    pid_t child = -1;
    const auto listening = [&] {
      child = fork();
      if (child != 0) return;
      body(task);
      end_task(0);
    };
    auto served = serve_pages({.images = directory_,
                               .memory = memory_file_,
                               .work = directory_,
                               .shared_images = shared_images_,
                               .fills_early = fills_early_,
                               .leaves_locks = leaves_locks_,
                               .listening = listening,
                               .completed = [this] { memory_is_complete_ = true; }});
    has_listened_ = child > 0;
    if (!has_listened_) return served;
    if (!served) kill(child, SIGKILL);
    task_end_ = end_of(child);
    return served;
  }

  std::string directory_;
  std::string memory_file_;  // empty: there is none
  std::string shared_images_;
  bool fills_early_ = false;
  bool leaves_locks_ = false;
  bool has_listened_ = false;
  std::byte* memory_ = nullptr;
  int task_end_ = -1;
  std::atomic<bool> memory_is_complete_ = false;
};

TEST_F(PagerTest, PagesArriveFromAMemoryFile) {
  write_memory_file();
  const auto served = serve([](Restored& task) {
    task.begin();
    task.check(3, kPages, 97);
    task.finish();
    task.check(0, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(served->pages, kPagesInImages);
  EXPECT_EQ(task_end_, 0);
  EXPECT_TRUE(memory_is_complete_);
}

TEST_F(PagerTest, PagesArriveBeforeTheMemoryFileIsComplete) {
  write_memory_file();
  fills_early_ = true;
  const auto served = serve([](Restored& task) {
    task.begin();
    task.check(3, kPages, 97);
    task.finish();
    task.check(0, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(served->pages, kPagesInImages);
  EXPECT_EQ(task_end_, 0);
  EXPECT_TRUE(memory_is_complete_);
}

TEST_F(PagerTest, AllPagesArriveByFaultsAndByTheFill) {
  const auto served = serve([](Restored& task) {
    task.begin();
    task.check(3, kPages, 97);  // CRIU has not finished yet
    task.finish();
    task.check(0, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
  EXPECT_EQ(served->pages, kPagesInImages);
  EXPECT_GE(served->faults, 8u);
  EXPECT_GE(served->zero_pages, 1u);
}

TEST_F(PagerTest, TaskThatTouchesNothingGetsItsPages) {
  const auto served = serve([](Restored& task) {
    task.begin();
    task.finish();
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
}

TEST_F(PagerTest, ForkedChildGetsThePagesThatItsParentLacked) {
  const auto served = serve([](Restored& task) {
    task.begin();
    task.check(0, 100);
    const pid_t child = fork();
    if (child == 0) {
      std::memset(task.page(3), 0, kPageBytes);  // the child gets its own copy
      task.check(4, kPages);
      end_task(0);
    }
    task.finish();
    task.check(0, kPages);
    if (end_of(child) != 0) end_task(105);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
  EXPECT_GT(served->pages, kPagesInImages);
}

TEST_F(PagerTest, PagesFollowMovedMemory) {
  const auto served = serve([](Restored& task) {
    task.begin();
    task.check(0, 10);
    void* place = mmap(nullptr, kPages * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void* moved = mremap(task.page(0), kPages * kPageBytes, kPages * kPageBytes,
                         MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (moved == MAP_FAILED) end_task(106);
    const Restored there(static_cast<std::byte*>(moved), "");
    there.check(5, 300);
    task.finish();
    there.check(0, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
}

// From Linux 6.9 on, a copy to a page that moves meanwhile fails with ENOENT.
TEST_F(PagerTest, PagesThatMoveWhileTheyAreCopiedAreNotLost) {
  constexpr int kMoves = 100;
  write_reversed_memory_file();
  const auto served = serve([](Restored& task) {
    task.begin();
    task.finish();
    void* here = task.page(0);
    void* there = mmap(nullptr, kPages * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int move = 0; move < kMoves; ++move) {
      if (mremap(here, kPages * kPageBytes, kPages * kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                 there) == MAP_FAILED) {
        end_task(106);
      }
      std::swap(here, there);
    }
    Restored(static_cast<std::byte*>(here), "").check(0, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
}

TEST_F(PagerTest, DiscardedPagesReadAsZerosAndUnmappedPagesAreNotAwaited) {
  const auto served = serve([](Restored& task) {
    task.begin();
    madvise(task.page(100), 50 * kPageBytes, MADV_DONTNEED);
    munmap(task.page(200), 50 * kPageBytes);
    task.finish();
    for (uint64_t page = 100; page < 150; ++page) {
      if (task.word(page) != 0) end_task(107);
    }
    task.check(0, 100);
    task.check(150, 200);
    task.check(250, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
}

// The task changes its memory while the filling thread is at work.
TEST_F(PagerTest, ChangesOfMemoryDuringTheFillLoseNothing) {
  const auto served = serve([](Restored& task) {
    task.begin();
    task.finish();
    for (uint64_t page = 0; page + 8 < kPages; page += 8) {
      madvise(task.page(page), kPageBytes, MADV_DONTNEED);
      mprotect(task.page(page + 4), kPageBytes, PROT_READ);  // splits the mapping
    }
    for (uint64_t page = 0; page + 8 < kPages; page += 8) {
      if (task.word(page) != 0) end_task(108);
      task.check(page + 1, page + 8);
    }
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
}

TEST_F(PagerTest, TaskThatEndsIsNotAwaited) {
  const auto served = serve([](Restored& task) {
    task.begin();
    task.check(0, 10);
    task.finish();
    end_task(0);
  });
  ASSERT_TRUE(served) << served.error().message;
}

TEST_F(PagerTest, RestoreThatEndsEarlyIsReported) {
  const auto served = serve([](Restored& task) { task.begin(); });
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().errno_value, ECANCELED);
}

TEST_F(PagerTest, PagesFileThatIsTooShortIsReported) {
  write_images(kPagesInImages / 2);
  const size_t open_before = open_userfaultfds();
  const auto served = serve([](Restored& task) {
    task.begin();
    task.finish();
    pause();
  });
  const size_t open_after = open_userfaultfds();
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().errno_value, EIO);
  // If the userfaultfd were closed, the task would read zeros.
  EXPECT_EQ(open_after, open_before + 1) << "the userfaultfd was closed";
}

// Otherwise CRIU would take the locks that the caller left out.
TEST_F(PagerTest, ChangedImagesThatCannotBePublishedAreAnError) {
  ASSERT_TRUE(ImageWriter(kFileLocksMagic).write(directory_ + "/filelocks.img"));
  leaves_locks_ = true;
  shared_images_ = directory_ + "/absent/link";
  const auto served = serve([](Restored& task) { task.begin(); });
  ASSERT_FALSE(served);
  EXPECT_FALSE(has_listened_);
  EXPECT_NE(served.error().message.find("changed images"), std::string::npos)
      << served.error().message;
}

TEST_F(PagerTest, TreeIsServedIfImagesThatOnlySaveMemoryCannotBeMade) {
  leaves_locks_ = true;  // there are no locks, so no image is changed
  shared_images_ = directory_ + "/absent/link";
  write_memory_file();
  const auto served = serve([](Restored& task) {
    task.begin();
    task.finish();
    task.check(0, kPages);
  });
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(task_end_, 0);
}

TEST_F(PagerTest, MissingImagesAreReported) {
  std::filesystem::remove(directory_ + "/pagemap-17.img");
  const auto served = serve([](Restored& task) {
    task.begin();
    pause();
  });
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().errno_value, ENOENT);
}

}  // namespace
}  // namespace ppmr
