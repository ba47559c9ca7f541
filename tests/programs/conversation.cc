// A parent sends numbers to partners, which answer with mix(number) and how many numbers they have
// answered. The medium between them differs.
//
// clang-format off
//   conversation pipes DIR                three children, each with two pipes
//   conversation unix DIR                 three children with socket pairs: stream, datagram,
//                                         seqpacket
//   conversation tcp DIR                  one child that listens on 127.0.0.1; both ends move
//                                         together
//   conversation shared-memory DIR        questions in anonymous shared memory, answers in a POSIX
//                                         shm
//                                         object; 4 MiB of seeded words in each
//   conversation threads DIR              sixteen threads pass a number round with a mutex and a
//                                         condition variable
//   conversation serve DIR ADDRESS PORT   one end of a connection between nodes: answers
//   conversation ask DIR ADDRESS PORT     the other end: asks
// clang-format on
//
// Each round appends a line to DIR/output: line=N mono_ns=T real_ns=T node=NAME pid=P
// partners=P1,P2 answers=A1,A2 served=S1,S2 wrong_words=W. `serve` writes no lines, only DIR/ready.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "arithmetic.h"
#include "pipe_child.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr int64_t kRoundIntervalNs = 5'000'000;

// The parent's interface to a partner.
struct Partner {
  virtual ~Partner() = default;
  virtual Answer ask(uint64_t number) = 0;
  virtual uint64_t wrong_words() { return 0; }
  pid_t pid = 0;
};

struct DescriptorPartner : Partner {
  DescriptorPartner(int to, int from) : to_(to), from_(from) {}
  Answer ask(uint64_t number) override { return ask_over(to_, from_, number); }
  int to_, from_;
};

std::unique_ptr<Partner> partner_over_pipes() {
  const PipeChild child;
  auto partner = std::make_unique<DescriptorPartner>(child.questions, child.answers);
  partner->pid = child.pid;
  return partner;
}

std::unique_ptr<Partner> partner_over_socket_pair(int type) {
  int ends[2];
  if (socketpair(AF_UNIX, type, 0, ends) != 0) die("socketpair");
  auto partner = std::make_unique<DescriptorPartner>(ends[0], ends[0]);
  partner->pid = start_child([&] {
    close(ends[0]);
    answer_over(ends[1], ends[1]);
  });
  close(ends[1]);
  return partner;
}

sockaddr_in socket_address(const char* address, int port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address, &where.sin_addr) != 1) {
    errno = EINVAL;
    die(address);
  }
  return where;
}

// Returns the listening socket. With port 0 the kernel chooses a port, which is stored in `port`.
int listen_at(const char* address, int& port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in where = socket_address(address, port);
  socklen_t length = sizeof where;
  if (bind(listener, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0 ||
      listen(listener, 4) != 0)
    die("listen");
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&where), &length) != 0) die("getsockname");
  port = ntohs(where.sin_port);
  return listener;
}

int connect_to(const char* address, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const sockaddr_in where = socket_address(address, port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) die("connect");
  return fd;
}

void answer_one_caller(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) die("accept");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  answer_over(fd, fd);
}

std::unique_ptr<Partner> partner_over_tcp() {
  int port = 0;
  const int listener = listen_at("127.0.0.1", port);
  const pid_t pid = start_child([&] { answer_one_caller(listener); });
  close(listener);
  const int fd = connect_to("127.0.0.1", port);
  auto partner = std::make_unique<DescriptorPartner>(fd, fd);
  partner->pid = pid;
  return partner;
}

// One direction in shared memory. Its writer increases `turn` by one when the peer may read
// `number` or `answer`. Seeded words follow.
struct SharedHalf {
  static constexpr size_t kWords = (4 << 20) / sizeof(uint64_t);
  std::atomic<uint64_t> turn;
  uint64_t number;
  Answer answer;
  uint64_t words[kWords];

  static SharedHalf* map(int fd, uint64_t seed) {
    void* at = mmap(nullptr, sizeof(SharedHalf), PROT_READ | PROT_WRITE,
                    MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (at == MAP_FAILED) die("mmap of shared memory");
    auto* half = static_cast<SharedHalf*>(at);
    for (size_t i = 0; i < kWords; ++i) half->words[i] = memory_word(seed, i);
    return half;
  }
  uint64_t wrong_words(uint64_t seed) const {
    uint64_t wrong = 0;
    for (size_t i = 0; i < kWords; ++i) wrong += words[i] != memory_word(seed, i);
    return wrong;
  }
  void wait_for_turn(uint64_t wanted) const {
    while (turn.load(std::memory_order_acquire) != wanted) sleep_ns(100'000);
  }
};

struct SharedMemoryPartner : Partner {
  static constexpr uint64_t kQuestionSeed = 11, kAnswerSeed = 12;
  SharedHalf* questions;  // in anonymous memory
  SharedHalf* answers;    // in a named object in /dev/shm
  uint64_t turn = 0;

  SharedMemoryPartner() {
    const std::string name = "/conversation-" + std::to_string(getpid());
    const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(SharedHalf)) != 0) die("shm_open");
    questions = SharedHalf::map(-1, kQuestionSeed);
    answers = SharedHalf::map(fd, kAnswerSeed);
    shm_unlink(name.c_str());  // only mappings keep it: the images must contain it
    close(fd);
    pid = start_child([this] { serve(); });
  }
  [[noreturn]] void serve() {
    const pid_t parent = getppid();
    Answer answer;
    for (uint64_t round = 1;; ++round) {
      while (questions->turn.load(std::memory_order_acquire) != round) {
        if (getppid() != parent) _exit(0);
        sleep_ns(100'000);
      }
      answer.value = mix(questions->number);
      ++answer.served;
      answers->answer = answer;
      answers->turn.store(round, std::memory_order_release);
    }
  }
  Answer ask(uint64_t number) override {
    ++turn;
    questions->number = number;
    questions->turn.store(turn, std::memory_order_release);
    answers->wait_for_turn(turn);
    return answers->answer;
  }
  uint64_t wrong_words() override {
    return questions->wrong_words(kQuestionSeed) + answers->wrong_words(kAnswerSeed);
  }
};

// Sixteen threads that take turns. The last thread returns the number to the parent.
struct ThreadRing : Partner {
  static constexpr size_t kThreads = 16;
  std::mutex mutex;
  std::condition_variable moved;
  size_t at = kThreads;  // the thread that has the turn; kThreads: the parent
  uint64_t number = 0;
  Answer answer;
  std::vector<std::thread> threads;

  ThreadRing() {
    pid = getpid();
    for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { take_turns(i); });
  }
  [[noreturn]] void take_turns(size_t mine) {
    thread_local uint64_t turns = 0;
    for (std::unique_lock lock(mutex);;) {
      moved.wait(lock, [&] { return at == mine; });
      ++turns;
      if (mine == 0) {
        answer.value = mix(number);
        answer.served = turns;
      } else if (answer.served != turns) {
        answer.value = 0;  // wrong answer: this thread has lost its count
      }
      at = mine + 1;
      moved.notify_all();
    }
  }
  Answer ask(uint64_t asked) override {
    std::unique_lock lock(mutex);
    number = asked;
    at = 0;
    moved.notify_all();
    moved.wait(lock, [&] { return at == kThreads; });
    return answer;
  }
};

[[noreturn]] void converse(const std::string& directory,
                           std::vector<std::unique_ptr<Partner>> partners) {
  LineFile output(directory + "/output");
  Pace pace(kRoundIntervalNs);
  for (uint64_t number = 1;; ++number) {
    std::string pids, answers, served;
    uint64_t wrong_words = 0;
    for (size_t i = 0; i < partners.size(); ++i) {
      const char* comma = i == 0 ? "" : ",";
      const Answer answer = partners[i]->ask(number);
      pids += comma + std::to_string(partners[i]->pid);
      answers += comma + std::to_string(answer.value);
      served += comma + std::to_string(answer.served);
      wrong_words += partners[i]->wrong_words();
    }
    output.line(
        "line=%lu mono_ns=%ld real_ns=%ld node=%s pid=%d partners=%s answers=%s served=%s "
        "wrong_words=%lu",
        number, monotonic_ns(), realtime_ns(), node_name().c_str(), getpid(), pids.c_str(),
        answers.c_str(), served.c_str(), wrong_words);
    if (number == 1) LineFile ready(directory + "/ready");
    pace.wait();
  }
}

std::vector<std::unique_ptr<Partner>> partners_for(const std::string& medium) {
  std::vector<std::unique_ptr<Partner>> partners;
  if (medium == "pipes") {
    for (int i = 0; i < 3; ++i) partners.push_back(partner_over_pipes());
  } else if (medium == "unix") {
    for (const int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET})
      partners.push_back(partner_over_socket_pair(type));
  } else if (medium == "tcp") {
    partners.push_back(partner_over_tcp());
  } else if (medium == "shared-memory") {
    partners.push_back(std::make_unique<SharedMemoryPartner>());
  } else if (medium == "threads") {
    partners.push_back(std::make_unique<ThreadRing>());
  }
  return partners;
}

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  using namespace ppmr_programs;
  const std::string medium = argc > 1 ? argv[1] : "";
  if (argc == 5 && medium == "serve") {
    int port = atoi(argv[4]);
    const int listener = listen_at(argv[3], port);
    { LineFile ready(std::string(argv[2]) + "/ready"); }
    answer_one_caller(listener);
    return 0;
  }
  std::vector<std::unique_ptr<Partner>> partners;
  if (argc == 5 && medium == "ask") {
    const int fd = connect_to(argv[3], atoi(argv[4]));
    partners.push_back(std::make_unique<DescriptorPartner>(fd, fd));
  } else if (argc == 3) {
    partners = partners_for(medium);
  }
  if (partners.empty()) {
    fprintf(stderr,
            "usage: %s pipes|unix|tcp|shared-memory|threads DIR, or serve|ask DIR ADDRESS PORT\n",
            argv[0]);
    return 2;
  }
  converse(argv[2], std::move(partners));
}
