#include "tests/movable_verbs/talker.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ppmr::verbs {
namespace {

constexpr uint32_t kKey = 0x11111111;
constexpr std::chrono::milliseconds kSendAgain{20};
constexpr std::chrono::milliseconds kPatience{3000};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "checker: WRONG: datagrams: %s: %s\n", what.c_str(), std::strerror(errno));
  std::_Exit(1);
}

void need(int error, const char* what) {
  errno = error;
  if (error != 0) fail(what);
}

uint8_t pattern(uint64_t number, size_t index, char who) {
  return static_cast<uint8_t>(number * 37 + index * 11 + static_cast<uint8_t>(who));
}

}  // namespace

Talker::Talker(ibv_context* context, ibv_pd* pd, const std::string& name,
               const std::string& partner)
    : name_(name), partner_(partner), pd_(pd) {
  buffers_.resize(2 * kDepth * (sizeof(Letter) + kHeaderBytes));
  cq_ = ibv_create_cq(context, 8 * kDepth, nullptr, nullptr, 0);
  region_ = ibv_reg_mr(pd, buffers_.data(), buffers_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (!cq_ || !region_) fail("make a queue");
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = cq_;
  init.cap = {kDepth, kDepth, 1, 1, 0};
  init.qp_type = IBV_QPT_UD;
  qp_ = ibv_create_qp(pd, &init);
  if (!qp_) fail("create a UD queue pair");
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qkey = kKey;
  need(
      ibv_modify_qp(qp_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
      "INIT");
  for (int i = 0; i < kDepth; ++i) post_receive(i);
  attributes.qp_state = IBV_QPS_RTR;
  need(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE), "RTR");
  attributes.qp_state = IBV_QPS_RTS;
  need(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

void Talker::connect(const TalkerAddress& partner) {
  address_ = partner;
  path_attributes_.is_global = 1;
  path_attributes_.port_num = 1;
  path_attributes_.grh.sgid_index = 1;
  for (size_t i = 0; i < 16; ++i)
    path_attributes_.grh.dgid.raw[i] =
        static_cast<uint8_t>(std::stoi(partner.gid.substr(2 * i, 2), nullptr, 16));
  make_path();
}

void Talker::make_path() {
  path_ = ibv_create_ah(pd_, &path_attributes_);
  if (!path_) fail("create an address handle");
}

void Talker::post_receive(int slot) {
  constexpr uint32_t kLength = sizeof(Letter) + kHeaderBytes;
  ibv_sge piece = {
      reinterpret_cast<uint64_t>(buffers_.data()) + static_cast<uint64_t>(slot) * kLength, kLength,
      region_->lkey};
  ibv_recv_wr request = {}, *bad = nullptr;
  request.wr_id = static_cast<uint64_t>(slot);
  request.sg_list = &piece;
  request.num_sge = 1;
  need(ibv_post_recv(qp_, &request, &bad), "post a receive");
}

void Talker::send(uint64_t number, bool is_answer) {
  if (sends_under_way_ > 0) return;  // a later call tries again
  // Replaces the address handle from time to time. No send uses it now, so it can be destroyed.
  if (++posted_ % 64 == 0) {
    need(ibv_destroy_ah(path_), "destroy an address handle");
    make_path();
  }
  auto* place = buffers_.data() + kDepth * (sizeof(Letter) + kHeaderBytes);
  Letter letter = {};
  std::snprintf(letter.from, sizeof(letter.from), "%s", name_.c_str());
  std::snprintf(letter.to, sizeof(letter.to), "%s", partner_.c_str());
  letter.to_qpn = address_.qpn;
  letter.is_answer = is_answer;
  letter.number = number;
  for (size_t i = 0; i < sizeof(letter.filling); ++i)
    letter.filling[i] = pattern(number, i, name_[0]);
  std::memcpy(place, &letter, sizeof(letter));
  ibv_sge piece = {reinterpret_cast<uint64_t>(place), sizeof(Letter), region_->lkey};
  ibv_send_wr request = {}, *bad = nullptr;
  request.wr_id = kDepth;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = path_;
  request.wr.ud.remote_qpn = address_.qpn;
  request.wr.ud.remote_qkey = kKey;
  need(ibv_post_send(qp_, &request, &bad), "post a datagram");
  ++sends_under_way_;
}

bool Talker::has_waited_long() const {
  return !is_idle() && std::chrono::steady_clock::now() - begun_at_ > kPatience;
}

void Talker::talk() {
  const auto now = std::chrono::steady_clock::now();
  if (is_idle()) {
    ++begun_;
    begun_at_ = now;
  } else if (now - sent_ < kSendAgain) {
    return;
  }
  sent_ = now;
  send(begun_, false);
}

void Talker::poll() {
  ibv_wc completions[8];
  const int count = ibv_poll_cq(cq_, 8, completions);
  if (count < 0) fail("poll");
  for (int i = 0; i < count; ++i) {
    const ibv_wc& completion = completions[i];
    if (completion.status != IBV_WC_SUCCESS) {
      std::fprintf(stderr, "checker: datagram with status %d\n", completion.status);
      std::_Exit(3);
    }
    if (completion.qp_num != qp_->qp_num) fail("a completion of a foreign queue pair");
    if (completion.wr_id == kDepth) {
      --sends_under_way_;
      continue;
    }
    if (completion.byte_len != sizeof(Letter) + kHeaderBytes) fail("a wrong length");
    Letter letter;
    const uint64_t offset = completion.wr_id * (sizeof(Letter) + kHeaderBytes);
    std::memcpy(&letter, buffers_.data() + offset + kHeaderBytes, sizeof(letter));
    post_receive(static_cast<int>(completion.wr_id));
    take(letter);
  }
}

void Talker::take(const Letter& letter) {
  if (name_ != letter.to || partner_ != letter.from || letter.to_qpn != qp_->qp_num)
    fail(std::string("a datagram for ") + letter.to + " from " + letter.from);
  for (size_t i = 0; i < sizeof(letter.filling); ++i) {
    if (letter.filling[i] != pattern(letter.number, i, partner_[0])) fail("wrong bytes");
  }
  if (!letter.is_answer) {
    send(letter.number, true);
  } else if (letter.number == begun_) {
    answered_ = begun_;
  }
}

}  // namespace ppmr::verbs
