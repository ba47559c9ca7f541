// A FUSE file system that discards every byte. It measures what a write through FUSE costs before
// any processing: aggregation in the source mount cannot be faster.
//
// The sink is as fast as libfuse allows: direct I/O; every thread receives requests into private
// memory, placed so that the payload of a write begins on a page; a write takes no lock and touches
// no byte. Names and lengths are stored, because checkpoint tools check them.
//
// Rejected: `ppmr source --discard`, because that includes ppmr's own request loop;
// fuse_session_loop_mt(), because its threads hold a lock while they receive.
//
//   null_sink MOUNTPOINT [--max-write BYTES] [--threads N]      ends when it is unmounted

#include <dirent.h>
#include <fuse3/fuse_lowlevel.h>
#include <signal.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/command_line/size_option.h"

namespace {

constexpr size_t kPageBytes = 4096;
// Equals sizeof(fuse_in_header) + sizeof(fuse_write_in).
constexpr size_t kWriteHeaderBytes = 80;
constexpr double kAttributesSeconds = 1;

size_t max_write_bytes = size_t{1} << 20;  // constant after main() has parsed the options

struct Node {
  fuse_ino_t inode = 0;
  mode_t mode = 0;
  std::atomic<uint64_t> size_bytes = 0;
  std::map<std::string, Node*> children;
};

// Files are never freed: a benchmark creates a few thousand at most.
// Threads: any. The lock does not guard `size_bytes`, which is atomic.
class Tree {
 public:
  Tree() : root_(make(S_IFDIR | 0755)) {}

  static Node* node(fuse_ino_t inode) {
    return inode == FUSE_ROOT_ID ? root() : reinterpret_cast<Node*>(inode);
  }
  static Tree& instance() {
    static Tree tree;
    return tree;
  }
  static Node* root() { return instance().root_; }

  Node* find(fuse_ino_t parent, const char* name) {
    std::lock_guard lock(mutex_);
    const auto found = node(parent)->children.find(name);
    return found == node(parent)->children.end() ? nullptr : found->second;
  }
  Node* add(fuse_ino_t parent, const char* name, mode_t mode) {
    std::lock_guard lock(mutex_);
    return node(parent)->children[name] = make(mode);
  }
  bool remove(fuse_ino_t parent, const char* name) {
    std::lock_guard lock(mutex_);
    return node(parent)->children.erase(name) > 0;
  }
  std::vector<std::pair<std::string, Node*>> list(fuse_ino_t directory) {
    std::lock_guard lock(mutex_);
    auto& children = node(directory)->children;
    return {children.begin(), children.end()};
  }

 private:
  Node* make(mode_t mode) {
    auto made = std::make_unique<Node>();
    made->mode = mode;
    made->inode = nodes_.empty() ? FUSE_ROOT_ID : reinterpret_cast<fuse_ino_t>(made.get());
    nodes_.push_back(std::move(made));
    return nodes_.back().get();
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Node>> nodes_;  // guarded by mutex_
  Node* const root_;                          // last: the constructor makes it in nodes_
};

struct stat attributes(const Node& node) {
  struct stat result {};
  result.st_ino = node.inode;
  result.st_mode = node.mode;
  result.st_nlink = 1;
  result.st_size = static_cast<off_t>(node.size_bytes.load(std::memory_order_relaxed));
  return result;
}

fuse_entry_param entry(const Node& node) {
  fuse_entry_param result{};
  result.ino = node.inode;
  result.attr = attributes(node);
  result.attr_timeout = result.entry_timeout = kAttributesSeconds;
  return result;
}

void init(void*, fuse_conn_info* connection) {
  connection->max_write = static_cast<unsigned>(max_write_bytes);
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Node* node = Tree::instance().find(parent, name);
  if (node == nullptr) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  const fuse_entry_param found = entry(*node);
  fuse_reply_entry(request, &found);
}

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  const struct stat found = attributes(*Tree::node(inode));
  fuse_reply_attr(request, &found, 0);
}

void setattr(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int what, fuse_file_info*) {
  Node& node = *Tree::node(inode);
  if (what & FUSE_SET_ATTR_SIZE) node.size_bytes = static_cast<uint64_t>(wanted->st_size);
  const struct stat changed = attributes(node);
  fuse_reply_attr(request, &changed, 0);
}

void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  const fuse_entry_param made = entry(*Tree::instance().add(parent, name, S_IFDIR | mode));
  fuse_reply_entry(request, &made);
}

void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode,
            fuse_file_info* file) {
  const fuse_entry_param made = entry(*Tree::instance().add(parent, name, S_IFREG | mode));
  file->direct_io = 1;
  fuse_reply_create(request, &made, file);
}

void open(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  file->direct_io = 1;
  fuse_reply_open(request, file);
}

void read(fuse_req_t request, fuse_ino_t, size_t, off_t, fuse_file_info*) {
  // Returns an error and not zeros, because the written bytes were discarded.
  fuse_reply_err(request, EIO);
}

void write(fuse_req_t request, fuse_ino_t inode, const char*, size_t size, off_t offset,
           fuse_file_info*) {
  std::atomic<uint64_t>& length = Tree::node(inode)->size_bytes;
  const uint64_t end = static_cast<uint64_t>(offset) + size;
  uint64_t before = length.load(std::memory_order_relaxed);
  while (before < end && !length.compare_exchange_weak(before, end, std::memory_order_relaxed)) {
  }
  fuse_reply_write(request, size);
}

void succeed(fuse_req_t request, fuse_ino_t, fuse_file_info*) { fuse_reply_err(request, 0); }

void fsync(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(request, 0); }

void remove(fuse_req_t request, fuse_ino_t parent, const char* name) {
  fuse_reply_err(request, Tree::instance().remove(parent, name) ? 0 : ENOENT);
}

void readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  std::vector<char> listing(size);
  size_t used = 0;
  const auto children = Tree::instance().list(inode);
  for (size_t i = static_cast<size_t>(offset); i < children.size(); ++i) {
    const struct stat found = attributes(*children[i].second);
    const size_t needed =
        fuse_add_direntry(request, listing.data() + used, size - used, children[i].first.c_str(),
                          &found, static_cast<off_t>(i + 1));
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, listing.data(), used);
}

void serve(fuse_session* session) {
  const size_t size = 2 * kPageBytes + max_write_bytes;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kPageBytes, size),
                                                           &std::free);
  if (!memory) {
    fprintf(stderr, "null_sink: cannot allocate %zu bytes for requests\n", size);
    return;
  }
  while (!fuse_session_exited(session)) {
    fuse_buf request{};
    request.mem = static_cast<char*>(memory.get()) + kPageBytes - kWriteHeaderBytes;
    const int received = fuse_session_receive_buf(session, &request);
    if (received == -EINTR || received == -EAGAIN) continue;
    if (received <= 0) return;
    fuse_session_process_buf(session, &request);
  }
}

int run(const std::string& mountpoint, unsigned thread_count) {
  fuse_lowlevel_ops operations{};
  operations.init = init;
  operations.lookup = lookup;
  operations.getattr = getattr;
  operations.setattr = setattr;
  operations.mkdir = mkdir;
  operations.create = create;
  operations.open = open;
  operations.read = read;
  operations.write = write;
  operations.flush = succeed;
  operations.release = succeed;
  operations.fsync = fsync;
  operations.unlink = remove;
  operations.rmdir = remove;
  operations.readdir = readdir;

  char name[] = "null_sink";
  char option[] = "-ofsname=null_sink,subtype=null_sink,nosuid,nodev";
  char* words[] = {name, option, nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(2, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, nullptr);
  if (session == nullptr) return 1;
  int code = 1;
  if (fuse_set_signal_handlers(session) == 0) {
    if (fuse_session_mount(session, mountpoint.c_str()) == 0) {
      std::vector<std::jthread> threads;
      for (unsigned i = 1; i < thread_count; ++i) threads.emplace_back(serve, session);
      serve(session);
      fuse_session_unmount(session);  // ends the other threads' reads
      code = 0;
    }
    fuse_remove_signal_handlers(session);
  }
  fuse_session_destroy(session);
  fuse_opt_free_args(&arguments);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A FUSE file system that discards every byte");
  std::string mountpoint;
  unsigned thread_count = 1;
  app.add_option("MOUNTPOINT", mountpoint, "an empty directory")->required();
  ppmr::add_size_option(app, "--max-write", max_write_bytes, "the largest write request");
  app.add_option("--threads", thread_count, "threads that receive requests")
      ->check(CLI::Range(1u, 64u));
  CLI11_PARSE(app, argc, argv);
  return run(mountpoint, thread_count);
}
