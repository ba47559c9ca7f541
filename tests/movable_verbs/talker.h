// A UD queue pair that talks to one partner: it sends a datagram, repeats it until the partner has
// answered, and checks that everything that arrives was meant for it. Datagrams may be lost; a
// wrong one ends the process.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ppmr::verbs {

struct TalkerAddress {
  uint32_t qpn = 0;
  std::string gid;  // 32 hexadecimal digits
};

class Talker {
 public:
  // `name`, `partner`: the names of the ends, which the checks compare.
  Talker(ibv_context* context, ibv_pd* pd, const std::string& name, const std::string& partner);

  uint32_t qpn() const { return qp_->qp_num; }
  void connect(const TalkerAddress& partner);
  // Sends the next datagram, or repeats the last one if it has no answer after an interval.
  void talk();
  bool is_idle() const { return answered_ == begun_; }
  // Returns whether a datagram has had no answer for a long time. The partner may have died: a
  // connection reports that, datagrams do not.
  bool has_waited_long() const;
  // Handles all completions that have arrived.
  void poll();

 private:
  struct Letter {
    char from[32], to[32];
    uint32_t to_qpn;
    uint32_t is_answer;
    uint64_t number;
    uint8_t filling[512];
  };
  static constexpr int kDepth = 16;
  static constexpr uint32_t kHeaderBytes = 40;

  void post_receive(int slot);
  void send(uint64_t number, bool is_answer);
  void take(const Letter& letter);
  void make_path();

  const std::string name_, partner_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  ibv_qp* qp_;
  ibv_ah* path_ = nullptr;
  ibv_ah_attr path_attributes_ = {};
  TalkerAddress address_;
  std::vector<uint8_t> buffers_;
  ibv_mr* region_;
  int sends_under_way_ = 0;
  uint64_t posted_ = 0;
  uint64_t begun_ = 0, answered_ = 0;
  std::chrono::steady_clock::time_point sent_, begun_at_;
};

}  // namespace ppmr::verbs
