// Measures what a verb costs: a send with its poll, a receive with its poll, and a poll without a
// completion. Prints nanoseconds as JSON: the least of several rounds, because other programs only
// add time.
//
//     verbs_overhead [QUEUE-PAIRS [wait]]
//
// With `wait` the program prints a line before it measures, and waits for a line on its standard
// input. Meanwhile it can be moved.
#include <infiniband/verbs.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kRounds = 9;
constexpr long kCalls = 1'000'000;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "verbs_overhead: %s failed\n", what);
  std::exit(1);
}

template <typename Function>
double nanoseconds(Function function) {
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (long i = 0; i < kCalls; ++i) function(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count() / kCalls);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t count = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
  int devices = 0;
  ibv_device** list = ibv_get_device_list(&devices);
  if (!list || devices == 0) fail("find a device");
  ibv_context* context = ibv_open_device(list[0]);
  if (!context) fail("open the device");
  ibv_pd* pd = ibv_alloc_pd(context);
  static char buffer[4096];
  ibv_mr* region = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
  ibv_cq* cq = ibv_create_cq(context, 512, nullptr, nullptr, 0);
  if (!region || !cq) fail("make the objects");
  std::vector<ibv_qp*> pairs;
  for (size_t i = 0; i < count; ++i) {
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {128, 128, 1, 1, 0};
    pairs.push_back(ibv_create_qp(pd, &init));
    if (!pairs.back()) fail("make a queue pair");
  }
  if (argc > 2) {
    std::puts("ready");
    std::fflush(stdout);
    (void)std::getchar();
  }
  ibv_sge piece = {reinterpret_cast<uint64_t>(buffer), 64, region->lkey};
  ibv_send_wr send = {}, *bad_send = nullptr;
  send.wr_id = 5;
  send.sg_list = &piece;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_recv_wr receive = {}, *bad_receive = nullptr;
  receive.wr_id = 6;
  receive.sg_list = &piece;
  receive.num_sge = 1;
  ibv_wc completions[16];
  const double send_ns = nanoseconds([&](long i) {
    if (ibv_post_send(pairs[static_cast<size_t>(i) % count], &send, &bad_send) != 0) fail("send");
    if (ibv_poll_cq(cq, 1, completions) != 1 || completions[0].wr_id != 5) fail("poll");
  });
  const double receive_ns = nanoseconds([&](long i) {
    if (ibv_post_recv(pairs[static_cast<size_t>(i) % count], &receive, &bad_receive) != 0)
      fail("receive");
    if (ibv_poll_cq(cq, 1, completions) != 1 || completions[0].wr_id != 6) fail("poll");
  });
  const double empty_ns = nanoseconds([&](long) {
    if (ibv_poll_cq(cq, 16, completions) != 0) fail("an empty poll");
  });
  std::printf("{\"send_ns\":%.1f,\"receive_ns\":%.1f,\"empty_ns\":%.1f}\n", send_ns, receive_ns,
              empty_ns);
}
