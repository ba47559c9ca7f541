#include "mount/kernel_names.h"

#include <system_error>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// More names wait only if the root directory stays locked. The kernel then forgets the others when
// it is short of memory.
constexpr size_t kWaitingMax = 4096;

}  // namespace

void KernelNames::begin(fuse_session* session) {
  MutexLock lock(mutex_);
  session_ = session;
}

// The kernel finds no name that it has not looked up: an error has no meaning.
void KernelNames::run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(
        mutex_, [this]() PPMR_REQUIRES(mutex_) { return session_ == nullptr || !names_.empty(); });
    if (session_ == nullptr) return;
    fuse_session* const session = session_;
    const std::string name = names_.extract(names_.begin()).value();
    lock.unlock();
    (void)fuse_lowlevel_notify_inval_entry(session, FUSE_ROOT_ID, name.data(), name.size());
    lock.lock();
  }
}

void KernelNames::end() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    session_ = nullptr;
    names_.clear();
    thread.swap(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void KernelNames::removed(const std::string& name) {
  MutexLock lock(mutex_);
  if (session_ == nullptr || names_.size() >= kWaitingMax) return;
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    names_.insert(name);
  } catch (const std::system_error& error) {
    spdlog::warn("removed names stay in the kernel's cache: no thread: {}", error.what());
  }
  changed_.notify_all();
}

}  // namespace ppmr
