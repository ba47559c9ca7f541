// Sends requests through libfuse, with a socket in place of /dev/fuse.
#include "mount/front_end.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace ppmr {
namespace {

constexpr uint64_t kBlockingInode = 2;
constexpr uint64_t kThrowingInode = 3;
constexpr uint64_t kThreadlessInode = 4;
constexpr uint64_t kExecutableInode = 6;

class TestFrontEnd final : public FrontEnd {
 public:
  Result<mode_t> mode_of(uint64_t inode) override {
    return S_IFREG | (inode == kExecutableInode ? 0700 : 0600);
  }
  Result<ListDirectory> open_directory(uint64_t) override {
    ++open_directories;
    std::shared_ptr<void> open(this, [this](void*) { --open_directories; });
    return [open] {
      return std::vector<DirectoryEntry>{{".", 1, wire::NodeType::kDirectory},
                                         {"name", 5, wire::NodeType::kFile}};
    };
  }
  void forget(uint64_t, uint64_t lookups) noexcept override { forgotten += lookups; }
  wire::Space space() override { return {}; }

  std::atomic<int> open_directories = 0;
  std::atomic<uint64_t> forgotten = 0;
  std::promise<void> unblock;
  std::shared_future<void> unblocked = unblock.get_future().share();
};

Status getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  if (inode == kThrowingInode) throw std::bad_alloc();
  if (inode == kThreadlessInode) {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  }
  if (inode == kBlockingInode) static_cast<TestFrontEnd&>(front_end_of(request)).unblocked.wait();
  reply_attributes(request, {.inode = inode}, {});
  return {};
}

// Acts as the kernel. Threads: one, and the threads of the loop.
class FuseRequests : public testing::Test {
 protected:
  FuseRequests() {
    add_shared_operations(operations_);
    operations_.getattr = Guarded<getattr>::call;
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    kernel_ = ends[0];
    std::string name = "test";
    char* words[] = {name.data()};
    fuse_args args = FUSE_ARGS_INIT(1, words);
    session_ = fuse_session_new(&args, &operations_, sizeof operations_,
                                static_cast<FrontEnd*>(&front_end_));
    fuse_opt_free_args(&args);
    static const fuse_custom_io io = {
        .writev = [](int fd, iovec* parts, int count, void*) { return ::writev(fd, parts, count); },
        .read = [](int fd, void* memory, size_t bytes, void*) { return ::read(fd, memory, bytes); },
        .splice_receive = nullptr,
        .splice_send = nullptr};
    EXPECT_EQ(fuse_session_custom_io(session_, &io, ends[1]), 0);
  }
  ~FuseRequests() override {
    ::close(kernel_);
    fuse_session_destroy(session_);
  }

  // Serves until the test calls end().
  Status serve(RequestLoopOptions options = {}) {
    loop_ = std::make_unique<RequestLoop>(session_, buffers_, std::move(options));
    if (auto started = loop_->start(); !started) return started;
    running_ = std::async(std::launch::async,
                          [this] { loop_->run([this] { front_end_.unblock.set_value(); }); });
    fuse_init_in init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = 31;
    send(FUSE_INIT, 0, &init, sizeof init);
    receive();
    return {};
  }
  void end() {
    loop_->stop();
    running_.wait();
  }

  void send(uint32_t operation, uint64_t inode, const void* body = nullptr, size_t bytes = 0) {
    std::vector<char> message(sizeof(fuse_in_header) + bytes);
    fuse_in_header header{};
    header.len = static_cast<uint32_t>(message.size());
    header.opcode = operation;
    header.unique = ++last_request_;
    header.nodeid = inode;
    std::memcpy(message.data(), &header, sizeof header);
    if (bytes > 0) std::memcpy(message.data() + sizeof header, body, bytes);
    ASSERT_EQ(::write(kernel_, message.data(), message.size()),
              static_cast<ssize_t>(message.size()));
  }
  void send_getattr(uint64_t inode) {
    const fuse_getattr_in body{};
    send(FUSE_GETATTR, inode, &body, sizeof body);
  }
  struct Reply {
    uint64_t request = 0;
    int error = 0;
    std::string body;
  };
  Reply receive() {
    char message[8192];
    const ssize_t received = ::read(kernel_, message, sizeof message);
    EXPECT_GE(received, static_cast<ssize_t>(sizeof(fuse_out_header)));
    fuse_out_header header{};
    std::memcpy(&header, message, sizeof header);
    return {header.unique, header.error,
            std::string(message + sizeof header, static_cast<size_t>(received) - sizeof header)};
  }

  TestFrontEnd front_end_;
  fuse_lowlevel_ops operations_{};
  int kernel_ = -1;
  fuse_session* session_ = nullptr;
  uint64_t last_request_ = 0;
  HeapRequestBuffers buffers_;
  std::unique_ptr<RequestLoop> loop_;
  std::future<void> running_;
};

// Root may read and write every file, but may execute only files that have an execute bit.
TEST_F(FuseRequests, AccessToExecuteDependsOnTheMode) {
  ASSERT_TRUE(serve());
  const auto access = [this](uint64_t inode, uint32_t mask) {
    const fuse_access_in body{.mask = mask, .padding = 0};
    send(FUSE_ACCESS, inode, &body, sizeof body);
    return receive().error;
  };
  EXPECT_EQ(access(kExecutableInode, X_OK), 0);
  EXPECT_EQ(access(kThrowingInode, R_OK | W_OK), 0);
  EXPECT_EQ(access(kThrowingInode, X_OK), -EACCES);
  end();
}

// Else the daemon would keep the nodes of removed files until the kernel is short of memory.
TEST_F(FuseRequests, KernelForgetsNamesThatTheDaemonHasRemoved) {
  ASSERT_TRUE(serve());
  KernelNames names;
  names.removed("before");
  names.begin(session_);
  names.removed("epoch-1");
  const Reply message = receive();
  EXPECT_EQ(message.request, 0u) << "it is not a reply";
  EXPECT_EQ(message.error, FUSE_NOTIFY_INVAL_ENTRY);
  fuse_notify_inval_entry_out body{};
  ASSERT_GT(message.body.size(), sizeof body);
  std::memcpy(&body, message.body.data(), sizeof body);
  EXPECT_EQ(body.parent, FUSE_ROOT_ID);
  EXPECT_STREQ(message.body.c_str() + sizeof body, "epoch-1");
  names.end();
  names.removed("after");
  send_getattr(1);
  EXPECT_EQ(receive().request, last_request_);
  end();
}

TEST_F(FuseRequests, ExceptionInOperationBecomesErrnoOfCaller) {
  ASSERT_TRUE(serve());
  send_getattr(kThrowingInode);
  EXPECT_EQ(receive().error, -ENOMEM);
  send_getattr(kThreadlessInode);
  EXPECT_EQ(receive().error, -EAGAIN);
  send_getattr(1);
  EXPECT_EQ(receive().error, 0);
  end();
}

TEST_F(FuseRequests, ListsDirectoryAndClosesItOnRelease) {
  ASSERT_TRUE(serve());
  const fuse_open_in open{};
  send(FUSE_OPENDIR, 1, &open, sizeof open);
  fuse_open_out opened{};
  std::memcpy(&opened, receive().body.data(), sizeof opened);
  EXPECT_EQ(front_end_.open_directories, 1);
  fuse_read_in read{};
  read.fh = opened.fh;
  read.size = 4096;
  send(FUSE_READDIR, 1, &read, sizeof read);
  EXPECT_NE(receive().body.find("name"), std::string::npos);
  fuse_release_in release{};
  release.fh = opened.fh;
  send(FUSE_RELEASEDIR, 1, &release, sizeof release);
  EXPECT_EQ(receive().error, 0);
  EXPECT_EQ(front_end_.open_directories, 0);
  end();
}

TEST_F(FuseRequests, BatchForgetReachesTheFrontEnd) {
  ASSERT_TRUE(serve());
  struct {
    fuse_batch_forget_in header{2, 0};
    fuse_forget_one forgets[2] = {{5, 1}, {6, 2}};
  } body;
  send(FUSE_BATCH_FORGET, 0, &body, sizeof body);
  send_getattr(1);
  receive();
  end();
  EXPECT_EQ(front_end_.forgotten, 3u);
}

TEST_F(FuseRequests, AreServedWhileManyHandlersBlock) {
  constexpr int kBlocked = 600;
  ASSERT_TRUE(serve());
  for (int i = 0; i < kBlocked; ++i) send_getattr(kBlockingInode);
  send_getattr(1);
  EXPECT_EQ(receive().request, last_request_) << "the only request whose handler does not block";
  EXPECT_GT(loop_->workers(), size_t{kBlocked});
  std::thread replies([this] {
    for (int i = 0; i < kBlocked; ++i) receive();
  });
  end();
  replies.join();
}

// Limits the threads that the loop can start, like pids.max.
struct ThreadLimit {
  std::atomic<int> left;
  std::atomic<int> refused = 0;
  RequestLoopOptions options() {
    RequestLoopOptions options;
    options.start_thread = [this](std::function<void()> body) {
      if (left-- <= 0) {
        ++refused;
        throw std::system_error(EAGAIN, std::generic_category());
      }
      return std::thread(std::move(body));
    };
    return options;
  }
};

TEST_F(FuseRequests, AreServedByFewerThreadsWhenThreadCreationFails) {
  ThreadLimit limit{.left = 1};
  ASSERT_TRUE(serve(limit.options()));
  EXPECT_EQ(loop_->workers(), 1u);
  send_getattr(1);
  EXPECT_EQ(receive().error, 0);
  // The only worker blocks; the loop tries until a thread can be started.
  send_getattr(kBlockingInode);
  const int refused_before = limit.refused;
  while (limit.refused < refused_before + 2) std::this_thread::yield();
  limit.left = 1;
  send_getattr(1);
  EXPECT_EQ(receive().request, last_request_);
  end();
}

TEST_F(FuseRequests, RequestLoopFailsToStartWhenNoThreadCanBeCreated) {
  ThreadLimit limit{.left = 0};
  const Status started = serve(limit.options());
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().errno_value, EAGAIN);
}

TEST(NodeView, TimesBeforeTheEpochHavePositiveNanoseconds) {
  const timespec time = to_timespec(-1);
  EXPECT_EQ(time.tv_sec, -1);
  EXPECT_EQ(time.tv_nsec, 999'999'999);
  EXPECT_EQ(to_ns(time), -1);
}

}  // namespace
}  // namespace ppmr
