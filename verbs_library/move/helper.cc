#include "verbs_library/move/helper.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>

#include "verbs_library/move/check.h"
#include "verbs_library/move/connections.h"
#include "verbs_library/move/datagrams.h"
#include "verbs_library/move/directory.h"
#include "verbs_library/move/replace.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/made_once.h"
#include "verbs_library/shadow/send.h"

// The time is a setting, so that tests need not wait for two minutes.
#define PPMR_RDMA_AWAY_MS ppmr::verbs::settings().away_limit.count()
#include "jobs/rdma_release.h"

namespace ppmr::verbs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kVisitorsMax = 64;  // others wait in the queue of the listener
// The library closes the connection of a visitor that sends nothing for this time. A peer that
// waits for something sends a request every few milliseconds.
constexpr std::chrono::seconds kVisitorSilence{10};

struct Visitor {
  Line line;
  Time last_heard;
};

// Returns the first IPv4 address of this machine, or 127.0.0.1. Used if the GIDs of the devices are
// no IP addresses.
std::string address_of_machine() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "127.0.0.1";
  std::string found = "127.0.0.1";
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_LOOPBACK))
      continue;
    char text[INET_ADDRSTRLEN];
    const auto& address = reinterpret_cast<const sockaddr_in&>(*one->ifa_addr);
    found = inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    break;
  }
  freeifaddrs(all);
  return found;
}

std::string choose_ip() {
  if (!settings().control_ip.empty()) return settings().control_ip;
  std::vector<Gid> gids;
  for (const Context* context : world().contexts) {
    if (!context->real) continue;
    ibv_device_attr device = {};
    real().ibv_query_device(context->real, &device);
    for (uint32_t port = 1; port <= device.phys_port_cnt; ++port) {
      for (const GidEntry& entry : read_gids(context->real, port)) gids.push_back(entry.gid);
    }
  }
  const auto chosen = choose_control_ip(gids);
  return chosen ? *chosen : address_of_machine();
}

class Helper {
 public:
  bool start();
  void wake() { eventfd_write(wake_fd_, 1); }
  const ControlAddress& address() const { return address_; }
  void find_address() { address_.ip = choose_ip(); }
  void close_after_fork();

 private:
  enum class Phase { kHere, kReleasing, kAway };

  static void* run(void* self) {
    static_cast<Helper*>(self)->loop();
    return nullptr;
  }
  void loop();
  void wait();
  bool listen_anew();
  void accept_visitors();
  void serve_visitors();
  void tend_all();
  void obey();
  void begin_release();
  void continue_release();
  std::string what_hinders(Qp& qp, bool& is_ready, std::string& slow);
  void cancel_release(const std::string& why);
  void continue_check();
  void leave();
  std::string come_back();  // returns what failed, or an empty text
  void publish_all(bool moves);

  ppmr_rdma requests_ = {};
  int wake_fd_ = -1;
  int listener_ = -1;
  ControlAddress address_;
  std::list<Visitor> visitors_;
  Phase phase_ = Phase::kHere;
  Time release_limit_ = {};
  Time look_again_ = Time::max();
  std::optional<Check> check_;  // a request "check" that is not answered yet
};

template <typename Function>
void for_each_queue_pair(Function function) {
  for (Context* context : world().contexts) {
    // `function` may end a connection, but must not make or destroy a queue pair.
    for (Qp* qp : context->queue_pairs) function(*qp);
  }
}

bool Helper::start() {
  if (ppmr_rdma_open(&requests_) != 0) {
    log("listen for requests: %s", std::strerror(errno));
    return false;
  }
  requests_.answers_checks = 1;
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!listen_anew()) log("listen for peers: %s", std::strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  // The helper thread handles no signals: they are for the threads of the program.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, nullptr, run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    log("start the helper thread: %s", std::strerror(error));
    return false;
  }
  pthread_setname_np(thread, "ppmr-verbs");
  pthread_detach(thread);
  return true;
}

void Helper::close_after_fork() {
  // These descriptors are copies of the child. The descriptors of the parent stay open.
  ppmr_rdma_close(&requests_);
  if (listener_ >= 0) close(listener_);
  if (wake_fd_ >= 0) close(wake_fd_);
  visitors_.clear();
  check_.reset();
}

bool Helper::listen_anew() {
  // Listens on all addresses of both families, because peers may use another address on the next
  // machine.
  listener_ = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_storage address = {};
  socklen_t size = sizeof(sockaddr_in6);
  if (listener_ >= 0) {
    const int off = 0;
    setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    address.ss_family = AF_INET6;
  } else {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    address.ss_family = AF_INET;
    size = sizeof(sockaddr_in);
  }
  if (listener_ < 0) return false;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return false;
  address_.port =
      ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(address).sin_port);
  return true;
}

void Helper::wait() {
  std::vector<pollfd> fds = {{.fd = ppmr_rdma_fd(&requests_), .events = POLLIN, .revents = 0}};
  int timeout = ppmr_rdma_timeout_ms(&requests_);
  if (phase_ != Phase::kAway) {
    fds.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
    if (visitors_.size() < kVisitorsMax)
      fds.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
    for (const Visitor& visitor : visitors_) {
      const short events = visitor.line.has_output() ? POLLIN | POLLOUT : POLLIN;
      fds.push_back({.fd = visitor.line.fd(), .events = events, .revents = 0});
    }
    constexpr int kLookForSilenceMs = 1000;
    if (!visitors_.empty())
      timeout = timeout < 0 ? kLookForSilenceMs : std::min(timeout, kLookForSilenceMs);
    if (look_again_ != Time::max()) {
      const auto left = std::chrono::ceil<milliseconds>(look_again_ - Clock::now()).count();
      const int wait_ms = static_cast<int>(std::clamp<long>(left, 0, 1000));
      timeout = timeout < 0 ? wait_ms : std::min(timeout, wait_ms);
    }
  }
  poll(fds.data(), fds.size(), timeout);
  eventfd_t count = 0;
  eventfd_read(wake_fd_, &count);
}

void Helper::accept_visitors() {
  while (visitors_.size() < kVisitorsMax) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    visitors_.push_back({Line(fd), Clock::now()});
  }
}

void Helper::serve_visitors() {
  const Time now = Clock::now();
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    Line* line = &visitor->line;
    bool is_good = line->advance() && now - visitor->last_heard < kVisitorSilence;
    while (auto request = line->take()) {
      visitor->last_heard = now;
      const auto reply = answer(*request, address_);
      if (!reply) {
        is_good = false;
        break;
      }
      line->queue(*reply);
    }
    if (is_good && line->has_output()) is_good = line->advance();
    visitor = is_good ? std::next(visitor) : visitors_.erase(visitor);
  }
}

void Helper::tend_all() {
  const Time now = Clock::now();
  look_again_ = Time::max();
  for_each_queue_pair(
      [&](Qp& qp) { look_again_ = std::min(look_again_, tend(qp, now, address_)); });
}

void Helper::publish_all(bool moves) {
  for_each_queue_pair([&](Qp& qp) { publish_names(qp, address_, moves); });
}

void Helper::begin_release() {
  phase_ = Phase::kReleasing;
  release_limit_ = Clock::now() + settings().drain_limit;
  log("release begins");
}

// Returns why the queue pair can never be destroyed; empty if it can be destroyed now or later.
// Sets `is_ready` to false if it must wait. For a UD queue pair, sets `slow` to the sender that it
// waits for.
std::string Helper::what_hinders(Qp& qp, bool& is_ready, std::string& slow) {
  if (qp.datagrams) return leave_datagrams(qp, is_ready, slow);
  if (qp.connection && is_broken(qp)) {
    qp.connection.reset();
    qp.qp_base.state = IBV_QPS_ERR;
  }
  if (!qp.connection) {
    absorb_completions(*qp.send_cq);
    is_ready &= traffic_of(qp).sends_done;
    return "";
  }
  Connection& connection = *qp.connection;
  if (std::string why = why_it_stays(qp); !why.empty()) return why;
  is_ready &= connection.link.leave() && connection.link.may_be_destroyed();
  return "";
}

void Helper::continue_release() {
  bool is_ready = true;
  std::string hindrance;
  std::string slow;
  for_each_queue_pair([&](Qp& qp) {
    bool one_is_ready = true;
    const std::string why = what_hinders(qp, one_is_ready, slow);
    if (hindrance.empty()) hindrance = why;
    if (!one_is_ready && slow.empty() && qp.connection)
      slow = std::string(what_delays(traffic_of(qp))) + " (" +
             address_of(qp.connection->link.peer().gid) + ", queue pair " +
             std::to_string(qp.connection->link.peer().qpn) + ")";
    is_ready &= one_is_ready;
  });
  if (!hindrance.empty()) return cancel_release(hindrance);
  if (is_ready) return leave();
  if (Clock::now() > release_limit_)
    return cancel_release(slow.empty() ? "sends do not complete" : slow);
  look_again_ = Clock::now() + milliseconds(1);
}

void Helper::cancel_release(const std::string& why) {
  log("release cancelled: %s", why.c_str());
  phase_ = Phase::kHere;
  for_each_queue_pair([&](Qp& qp) {
    if (qp.connection) qp.connection->link.stay();
    if (qp.datagrams) stay_datagrams(qp);
  });
  ppmr_rdma_done(&requests_, why.substr(0, 200).c_str());
}

void Helper::continue_check() {
  if (check_->advance(Clock::now())) {
    ppmr_rdma_answer(&requests_, check_->answer().c_str());
    check_.reset();
  } else {
    look_again_ = Clock::now() + milliseconds(1);
  }
}

void Helper::leave() {
  publish_all(true);
  for_each_queue_pair([&](Qp& qp) {
    if (qp.datagrams) left_datagrams(qp);
    if (!qp.connection) return;
    qp.connection->call.end();
    qp.connection->link.left();
    qp.connection->waits_since.reset();
  });
  // Closes the connections of peers. If an answer is lost with them, the peer repeats its request.
  visitors_.clear();
  close(listener_);
  listener_ = -1;
  phase_ = Phase::kAway;
  const std::string failure = destroy_real_objects();
  log("released%s%s", failure.empty() ? "" : ": ", failure.c_str());
  if (failure.empty()) return ppmr_rdma_done(&requests_, nullptr);
  come_back();
  ppmr_rdma_done(&requests_, failure.substr(0, 200).c_str());
}

std::string Helper::come_back() {
  const std::string failure = make_real_objects();
  if (!listen_anew()) log("listen for peers: %s", std::strerror(errno));
  find_address();
  phase_ = Phase::kHere;
  for_each_queue_pair([&](Qp& qp) {
    if (qp.datagrams) return_datagrams(qp);
    if (!qp.connection) return;
    qp.connection->link.returned();
    qp.connection->ask_again = {};
    qp.connection->refused_in_a_row = 0;
  });
  publish_all(false);
  log("resumed%s%s", failure.empty() ? "" : ": ", failure.c_str());
  return failure;
}

void Helper::obey() {
  switch (ppmr_rdma_next(&requests_)) {
    case PPMR_RDMA_RELEASE:
      if (phase_ == Phase::kAway) return ppmr_rdma_done(&requests_, nullptr);
      begin_release();
      break;
    case PPMR_RDMA_RESUME: {
      const std::string failure = phase_ == Phase::kAway ? come_back() : "";
      ppmr_rdma_done(&requests_, failure.empty() ? nullptr : failure.substr(0, 200).c_str());
      break;
    }
    case PPMR_RDMA_CHECK:
      check_.emplace(Clock::now(), phase_ == Phase::kHere);
      break;
    case PPMR_RDMA_NONE:
      break;
  }
}

void Helper::loop() {
  std::unique_lock<std::mutex> control(world().control, std::defer_lock);
  for (;;) {
    wait();
    // This thread holds the lock while the process is away, so that calls of the program that need
    // a device wait.
    if (!control.owns_lock()) control.lock();
    // Takes no new request of ppmr before the present one is finished.
    if (phase_ != Phase::kReleasing && !check_) obey();
    if (phase_ != Phase::kAway) {
      accept_visitors();
      serve_visitors();
      tend_all();
      if (phase_ == Phase::kReleasing) continue_release();
      // A request or a cancelled release may have changed links, which may have messages to send
      // now.
      if (phase_ == Phase::kHere) tend_all();
    }
    if (check_) continue_check();
    if (phase_ != Phase::kAway) control.unlock();
  }
}

std::atomic<Helper*> helper{nullptr};

// A forked child has only the forking thread, so it starts its own helper thread when it opens a
// device. In the child, objects of the parent stay usable as far as the real library allows, but
// they do not move with the child.
void prepare_fork() { world().control.lock(); }
void end_fork_in_parent() { world().control.unlock(); }
void end_fork_in_child() {
  world().control.unlock();
  if (Helper* parents = helper.exchange(nullptr)) parents->close_after_fork();
  world().contexts.clear();
}

}  // namespace

void start_helper() {
  const std::lock_guard control(world().control);
  static const int registered = pthread_atfork(prepare_fork, end_fork_in_parent, end_fork_in_child);
  (void)registered;
  if (!helper.load()) {
    auto* fresh = new Helper;
    if (!fresh->start()) return;  // the program works, but cannot be moved
    helper = fresh;
  }
  helper.load()->find_address();
}

void wake_helper() {
  if (Helper* running = helper.load()) running->wake();
}

const ControlAddress& control_address() {
  static std::atomic<const ControlAddress*> nowhere{nullptr};
  const Helper* running = helper.load();
  if (running) return running->address();
  return made_once(nowhere, [] { return new const ControlAddress; });
}

}  // namespace ppmr::verbs
