#include "processes/carried/carried_state.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/ioprio.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/unique_fd.h"
#include "processes/carried/socket_options.h"
#include "processes/carried/thread_attributes.h"
#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kUdp = 200;
constexpr int kTcp = 201;

std::string content_of(pid_t pid, const std::string& file) {
  return read_process_file(pid, file).value_or("");
}

void move_descriptor(int from, int to) {
  dup2(from, to);
  close(from);
}

// Both processes have the same sockets, as after a restore.
void open_sockets() {
  move_descriptor(socket(AF_INET, SOCK_DGRAM, 0), kUdp);
  move_descriptor(socket(AF_INET, SOCK_STREAM, 0), kTcp);
}

void set(int socket, int level, int name, int value) {
  if (setsockopt(socket, level, name, &value, sizeof(value)) != 0) abort();
}

int get(pid_t pid, int number, int level, int name) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const auto socket = take_socket(pidfd, number);
  int value = -1;
  socklen_t size = sizeof(value);
  if (socket) getsockopt(socket->get(), level, name, &value, &size);
  return value;
}

std::vector<ProcessIdentity> tasks_of(const TestProcess& process) {
  return {identify(process.pid()).value()};
}

// Carries the state of one process to the other, as if the other had the same pid.
Result<std::vector<std::string>> carry(const TestProcess& from, const TestProcess& to) {
  auto state = read_carried_state(tasks_of(from));
  if (!state) return failure(state.error());
  const std::string path = testing::TempDir() + "/carried-" + std::to_string(to.pid());
  if (Status written = write_carried_state(path, *state); !written) return failure(written.error());
  auto loaded = load_carried_state(path);
  unlink(path.c_str());
  if (!loaded) return failure(loaded.error());
  carried::Process& process = *(*loaded)->mutable_process(0);
  process.set_pid(0, to.pid());
  process.mutable_thread(0)->set_pid(0, to.pid());
  return apply_carried_state(**loaded, tasks_of(to));
}

TEST(CarriedState, AttributesOfAProcessAreCarried) {
  const TestProcess from([] {
    const cpu_set_t first = {{1}};  // CPU 0
    sched_setaffinity(0, sizeof(first), &first);
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7));
    prctl(PR_SET_TIMERSLACK, 12345);
    const sched_param none{};
    sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none);
    std::ofstream("/proc/self/coredump_filter") << "0x7f";
  });
  const TestProcess to;
  const auto warnings = carry(from, to);
  ASSERT_TRUE(warnings) << warnings.error().message;
  EXPECT_THAT(*warnings, IsEmpty());
  cpu_set_t cpus;
  sched_getaffinity(to.pid(), sizeof(cpus), &cpus);
  EXPECT_TRUE(CPU_ISSET(0, &cpus));
  EXPECT_EQ(syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, to.pid()),
            IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7));
  EXPECT_EQ(content_of(to.pid(), "timerslack_ns"), "12345\n");
  EXPECT_EQ(content_of(to.pid(), "coredump_filter"), "0000007f\n");
  EXPECT_EQ(sched_getscheduler(to.pid()), SCHED_BATCH | SCHED_RESET_ON_FORK);
}

TEST(CarriedState, OptionsOfSocketsAreCarried) {
  const TestProcess from([] {
    open_sockets();
    set(kUdp, SOL_SOCKET, SO_TIMESTAMP, 1);
    set(kUdp, IPPROTO_IP, IP_RECVTTL, 1);
    set(kUdp, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    set(kTcp, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
    set(kTcp, IPPROTO_TCP, TCP_DEFER_ACCEPT, 7);
    set(kTcp, IPPROTO_TCP, TCP_MAXSEG, 1000);
    setsockopt(kTcp, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  });
  const TestProcess to(open_sockets);
  const auto carried = carry(from, to);
  ASSERT_TRUE(carried) << carried.error().message;
  EXPECT_EQ(get(to.pid(), kUdp, SOL_SOCKET, SO_TIMESTAMP), 1);
  EXPECT_EQ(get(to.pid(), kUdp, IPPROTO_IP, IP_RECVTTL), 1);
  EXPECT_EQ(get(to.pid(), kUdp, IPPROTO_IP, IP_MTU_DISCOVER), IP_PMTUDISC_DO);
  EXPECT_EQ(get(to.pid(), kTcp, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
  EXPECT_EQ(get(to.pid(), kTcp, IPPROTO_TCP, TCP_DEFER_ACCEPT), 7);
  EXPECT_EQ(get(to.pid(), kTcp, IPPROTO_TCP, TCP_MAXSEG), 1000);
  int reno = 0;
  std::memcpy(&reno, "reno", sizeof(reno));
  EXPECT_EQ(get(to.pid(), kTcp, IPPROTO_TCP, TCP_CONGESTION), reno);
}

// Returns the processor time that this thread spends on the work, without the time of other
// programs.
std::chrono::nanoseconds time_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  auto least = std::chrono::nanoseconds::max();
  for (int run = 0; run < 5; ++run) {
    const auto before = now();
    work();
    least = std::min<std::chrono::nanoseconds>(least, now() - before);
  }
  return least;
}

// Sanitizers slow down this code, but not the system calls that measure the budget.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlower = 10;
#else
constexpr int kSlower = 1;
#endif

// The tree is frozen while ppmr reads its sockets. The budget is 5 ms for 100 sockets, on a machine
// on which a call of getsockopt(2) takes 0.25 us: the time of 200 calls for each socket.
TEST(CarriedState, StateOfAHundredSocketsIsCarriedWithinTheBudget) {
  constexpr int kSockets = 100, kCallsPerSocket = 200 * kSlower;
  const auto open_many = [] {
    for (int i = 0; i < kSockets; ++i) {
      const int made = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      set(made, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
    }
  };
  const TestProcess without, from(open_many);
  const UniqueFd one(socket(AF_INET, SOCK_STREAM, 0));
  const auto budget = time_of([&] {
    int value = 0;
    socklen_t size = sizeof(value);
    for (int i = 0; i < kSockets * kCallsPerSocket; ++i) {
      getsockopt(one.get(), SOL_SOCKET, SO_TYPE, &value, &size);
    }
  });
  const auto state = read_carried_state(tasks_of(from));
  ASSERT_TRUE(state);
  ASSERT_EQ(state->process(0).socket_size(), kSockets);
  const auto reading = [](const TestProcess& process) {
    return time_of([&] { ASSERT_TRUE(read_carried_state(tasks_of(process))); });
  };
  EXPECT_LT((reading(from) - reading(without)).count(), budget.count());
  const auto applying = time_of([&] { ASSERT_TRUE(apply_carried_state(*state, tasks_of(from))); });
  EXPECT_LT(applying.count(), budget.count());
}

// The two ends of a connection differ in options that a TCP socket cannot set.
TEST(CarriedState, BothEndsOfAConnectionAreCarried) {
  const auto connect_both = [] {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener.get(), any, size) != 0 || listen(listener.get(), 1) != 0) abort();
    getsockname(listener.get(), any, &size);
    move_descriptor(socket(AF_INET, SOCK_STREAM, 0), kUdp);
    if (connect(kUdp, any, size) != 0) abort();
    move_descriptor(accept(listener.get(), nullptr, nullptr), kTcp);
  };
  const TestProcess from([&] {
    connect_both();
    set(kTcp, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
  });
  const TestProcess to([&] {
    connect_both();
    move_descriptor(kUdp, kUdp + 2);
    move_descriptor(kTcp, kUdp);
    move_descriptor(kUdp + 2, kTcp);
  });
  const auto carried = carry(from, to);
  ASSERT_TRUE(carried) << carried.error().message;
  EXPECT_EQ(get(to.pid(), kTcp, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
}

TEST(CarriedState, MulticastGroupsAreJoinedAgain) {
  const TestProcess from([] {
    open_sockets();
    const ip_mreqn request{{inet_addr("239.1.2.3")}, {}, 1};
    if (setsockopt(kUdp, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request)) != 0) abort();
  });
  const TestProcess to(open_sockets);
  ASSERT_TRUE(carry(from, to));
  const auto again = read_carried_state(tasks_of(to));
  ASSERT_TRUE(again);
  ASSERT_EQ(again->process(0).socket(0).membership_size(), 1);
  EXPECT_EQ(again->process(0).socket(0).membership(0).interface(), "lo");
  EXPECT_TRUE(carry(from, to)) << "a socket that is a member already";
}

// Returns the interface by which a process sends multicasts from its UDP socket.
std::string interface_of_multicasts(const TestProcess& process) {
  const auto state = read_carried_state(tasks_of(process));
  EXPECT_TRUE(state);
  return state ? state->process(0).socket(0).multicast_interface() : "";
}

TEST(CarriedState, TheInterfaceForMulticastsIsChosenAgain) {
  const auto open_bound = [] {
    open_sockets();
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (bind(kUdp, reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0) abort();
    set(kUdp, IPPROTO_IP, IP_MULTICAST_TTL, 7);
    set(kUdp, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
  };
  const TestProcess from([&] {
    open_bound();
    const ip_mreqn loopback{{}, {}, 1};
    if (setsockopt(kUdp, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof(loopback)) != 0) abort();
  });
  const TestProcess to(open_bound);
  ASSERT_EQ(interface_of_multicasts(to), "") << "nobody has chosen one";
  ASSERT_EQ(interface_of_multicasts(from), "lo");
  ASSERT_TRUE(carry(from, to));
  EXPECT_EQ(interface_of_multicasts(to), "lo");
  for (const TestProcess* process : {&from, &to}) {
    EXPECT_EQ(get(process->pid(), kUdp, IPPROTO_IP, IP_MULTICAST_TTL), 7);
    EXPECT_EQ(get(process->pid(), kUdp, IPPROTO_IP, IP_MULTICAST_LOOP), 0);
  }
}

TEST(CarriedState, WhatTheTargetLacksIsNamed) {
  const TestProcess from(open_sockets);
  const TestProcess to(open_sockets);
  auto state = read_carried_state(tasks_of(from));
  ASSERT_TRUE(state);
  carried::Process& process = *state->mutable_process(0);
  process.set_pid(0, to.pid());
  process.mutable_thread(0)->set_pid(0, to.pid());
  process.mutable_thread(0)->add_cpus(8000);
  const auto warnings = apply_carried_state(*state, tasks_of(to));
  ASSERT_TRUE(warnings);
  EXPECT_THAT(*warnings, ElementsAre(HasSubstr("only on the CPUs 8000")));
  process.mutable_socket(0)->add_membership()->set_interface("ppmr-none");
  process.mutable_socket(0)->mutable_membership(0)->set_group(std::string("\xef\x01\x02\x03"));
  const auto refused = apply_carried_state(*state, tasks_of(to));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("239.1.2.3: this node has no interface ppmr-none"));
}

TEST(CarriedState, AThreadWithAllCpusHasNoRestriction) {
  const TestProcess process;
  const auto state = read_carried_state(tasks_of(process));
  ASSERT_TRUE(state);
  EXPECT_THAT(state->process(0).thread(0).cpus(), IsEmpty());
}

TEST(CarriedState, OnlyPrivilegedUsersMaySetSomeValues) {
  carried::State state;
  carried::Thread& thread = *state.add_process()->add_thread();
  EXPECT_EQ(privilege_in(state), "");
  thread.set_io_priority(IOPRIO_PRIO_VALUE(IOPRIO_CLASS_RT, 4));
  EXPECT_EQ(privilege_in(state), "a real-time I/O priority");
  thread.mutable_scheduling()->set_policy(SCHED_FIFO);
  EXPECT_EQ(privilege_in(state), "a real-time scheduling policy");
  state.mutable_process(0)->clear_thread();
  carried::Option& option = *state.mutable_process(0)->add_socket()->add_option();
  option.set_level(IPPROTO_IP);
  option.set_name(IP_TRANSPARENT);
  option.set_value(std::string("\1\0\0\0", 4));
  EXPECT_EQ(privilege_in(state), "the socket option IP_TRANSPARENT");
  option.set_value(std::string(4, '\0'));
  EXPECT_EQ(privilege_in(state), "");
}

TEST(CarriedState, AForeignFileIsRefused) {
  const std::string path = testing::TempDir() + "/foreign-" + std::to_string(getpid());
  std::ofstream(path) << "\x0a\xff";
  EXPECT_EQ(load_carried_state(path).error().errno_value, EPROTO);
  unlink(path.c_str());
  const auto none = load_carried_state(path);
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value()) << "an older source";
}

// docs/faithful.md is the inventory: each option that this code carries has its place there.
TEST(CarriedState, TheInventoryNamesEachOption) {
  std::ifstream file("docs/faithful.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const std::string& name : names_of_options()) {
    EXPECT_THAT(text.str(), HasSubstr("`" + name + "`"));
  }
}

TEST(ThreadAttributes, CpusAreParsed) {
  EXPECT_THAT(parse_cpus("0-2,8\n"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(parse_cpus(""), IsEmpty());
  EXPECT_THAT(choose_cpus({1, 2}, {2, 3}), ElementsAre(2));
}

TEST(SocketOptions, GroupsOfInterfacesAreParsed) {
  const auto groups = parse_groups(
      "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n"
      "1\tlo        :     1      V3\n\t\t\t\t030201EF     1 0:00000000\t\t0\n",
      "1    lo              ff020000000000000000000000000001     1 0000000C 0\n");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].interface, "lo");
  EXPECT_EQ(groups[0].address, "\xef\x01\x02\x03");
  EXPECT_EQ(groups[1].address.size(), 16u);
}

}  // namespace
}  // namespace ppmr
