// The part of the stub device that a network adapter has in hardware. One thread per device sends
// the first request of each queue pair, answers requests of peers, and makes completions.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/movable_verbs/stub/stub.h"

namespace stub {
namespace {

enum class Kind : uint32_t { kRequest, kAnswer, kNotReady, kRefused, kDatagram };

struct Header {
  Kind kind;
  uint32_t from_qpn, to_qpn, psn;
  uint32_t opcode, flags, key, immediate;
  uint64_t address, compare_add, swap;
  uint32_t length;
};

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t retry_ms() {
  static const char* const text = std::getenv("PPMR_STUB_RETRY_MS");
  return text ? std::atoll(text) : 1000;
}

bool send_to(const Qp& qp, const ibv_ah_attr& path, uint32_t qpn,
             const std::vector<uint8_t>& packet) {
  static const std::string cut = std::string(std::getenv("PPMR_STUB_FABRIC")) + "/cut";
  if (access(cut.c_str(), F_OK) == 0) return true;  // lost on its way
  char ip[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, path.grh.dgid.raw + 12, ip, sizeof(ip));
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::snprintf(to.sun_path, sizeof(to.sun_path), "%s/%s-%x", std::getenv("PPMR_STUB_FABRIC"), ip,
                qpn);
  return sendto(qp.fd, packet.data(), packet.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to),
                sizeof(to)) == static_cast<ssize_t>(packet.size());
}

bool send_to(const Qp& qp, const std::vector<uint8_t>& packet) {
  return send_to(qp, qp.attributes.ah_attr, qp.attributes.dest_qp_num, packet);
}

std::vector<uint8_t> make_packet(const Header& header, const void* data) {
  std::vector<uint8_t> packet(sizeof(header) + header.length);
  std::memcpy(packet.data(), &header, sizeof(header));
  if (header.length) std::memcpy(packet.data() + sizeof(header), data, header.length);
  return packet;
}

bool writes(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool is_answered_with_data(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

// Checks the keys, ranges and access rights of the pieces. Returns their total length in bytes, or
// -1.
int64_t check_pieces(Device& device, const std::vector<ibv_sge>& pieces, bool writes_memory) {
  int64_t total = 0;
  for (const ibv_sge& piece : pieces) {
    if (piece.length == 0) continue;
    const Mr* region = find_region(device, piece.lkey, false);
    if (!region || piece.addr < reinterpret_cast<uint64_t>(region->addr) ||
        piece.addr + piece.length > reinterpret_cast<uint64_t>(region->addr) + region->length ||
        (writes_memory && !(region->access & IBV_ACCESS_LOCAL_WRITE)))
      return -1;
    total += piece.length;
  }
  return total;
}

void scatter(const std::vector<ibv_sge>& pieces, const uint8_t* data, size_t length) {
  for (const ibv_sge& piece : pieces) {
    const size_t part = std::min<size_t>(piece.length, length);
    std::memcpy(reinterpret_cast<void*>(piece.addr), data, part);
    data += part;
    length -= part;
  }
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  if (writes(opcode)) return IBV_WC_RDMA_WRITE;
  if (opcode == IBV_WR_RDMA_READ) return IBV_WC_RDMA_READ;
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP) return IBV_WC_COMP_SWAP;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return IBV_WC_FETCH_ADD;
  return IBV_WC_SEND;
}

void end_send(Qp& qp, ibv_wc_status status) {
  const Send& send = qp.sends.front();
  const bool is_signalled = qp.init.sq_sig_all || (send.request.send_flags & IBV_SEND_SIGNALED);
  if (status != IBV_WC_SUCCESS || is_signalled) {
    ibv_wc completion = {};
    completion.wr_id = send.request.wr_id;
    completion.status = status;
    completion.opcode = completion_opcode(send.request.opcode);
    completion.qp_num = qp.qp_num;
    complete(*static_cast<Cq*>(qp.send_cq), completion);
  }
  qp.sends.pop_front();
  qp.is_under_way = false;
}

void begin_send(Device& device, Qp& qp, int64_t now) {
  Send& send = qp.sends.front();
  const ibv_send_wr& request = send.request;
  Header header = {};
  header.kind = Kind::kRequest;
  header.from_qpn = qp.qp_num;
  header.to_qpn = qp.attributes.dest_qp_num;
  header.psn = qp.next_psn;
  header.opcode = request.opcode;
  header.flags = request.send_flags;
  header.immediate = request.imm_data;
  std::vector<uint8_t> data;
  if (request.send_flags & IBV_SEND_INLINE) {
    data = send.inline_bytes;
  } else {
    const int64_t total = check_pieces(device, send.pieces, is_answered_with_data(request.opcode));
    if (total < 0) {
      end_send(qp, IBV_WC_LOC_PROT_ERR);
      return fail_queue_pair(device, qp);
    }
    header.length = static_cast<uint32_t>(total);
    if (!is_answered_with_data(request.opcode)) {
      for (const ibv_sge& piece : send.pieces) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(piece.addr);
        data.insert(data.end(), bytes, bytes + piece.length);
      }
    }
  }
  if (qp.qp_type == IBV_QPT_UD) {
    Ah* path = static_cast<Ah*>(request.wr.ud.ah);
    if (!device.paths.contains(path)) give_up("an address handle in use is destroyed");
    header.kind = Kind::kDatagram;
    header.to_qpn = request.wr.ud.remote_qpn;
    header.key = request.wr.ud.remote_qkey;
    header.length = static_cast<uint32_t>(data.size());
    // The completion does not depend on the arrival of the datagram.
    send_to(qp, path->attributes, header.to_qpn, make_packet(header, data.data()));
    return end_send(qp, IBV_WC_SUCCESS);
  }
  if (is_atomic(request.opcode)) {
    header.key = request.wr.atomic.rkey;
    header.address = request.wr.atomic.remote_addr;
    header.compare_add = request.wr.atomic.compare_add;
    header.swap = request.wr.atomic.swap;
  } else {
    header.key = request.wr.rdma.rkey;
    header.address = request.wr.rdma.remote_addr;
    if (request.opcode == IBV_WR_RDMA_READ) header.swap = header.length;
  }
  header.length = static_cast<uint32_t>(data.size());
  if (!qp.is_under_way) qp.began_ms = now;
  qp.is_under_way = true;
  qp.sent_ms = now;
  // If the peer's socket is full or missing, the packet is lost, and the device sends it again.
  if (!send_to(qp, make_packet(header, data.data())) && errno == EAGAIN) qp.sent_ms = 0;
}

void take_answer(Device& device, Qp& qp, const Header& header, const uint8_t* data) {
  if (!qp.is_under_way || header.psn != qp.next_psn) return;
  if (header.kind == Kind::kNotReady) {
    qp.not_before_ms = now_ms() + 1;
    qp.began_ms = now_ms();  // all tests set rnr_retry to 7: retry for ever
    qp.sent_ms = 0;
    return;
  }
  if (header.kind == Kind::kRefused) {
    end_send(qp, IBV_WC_REM_ACCESS_ERR);
    return fail_queue_pair(device, qp);
  }
  const Send& send = qp.sends.front();
  if (is_answered_with_data(send.request.opcode)) scatter(send.pieces, data, header.length);
  qp.next_psn = (qp.next_psn + 1) & 0xffffff;
  end_send(qp, IBV_WC_SUCCESS);
}

// Returns the memory that a request names; null if the request has no right to it.
uint8_t* remote_memory(Device& device, const Qp& qp, const Header& header, uint64_t length,
                       unsigned int access) {
  const Mr* region = find_region(device, header.key, true);
  if (!region || !(region->access & access) ||
      !(static_cast<unsigned int>(qp.attributes.qp_access_flags) & access) ||
      header.address < region->iova || header.address + length > region->iova + region->length)
    return nullptr;
  return static_cast<uint8_t*>(region->addr) + (header.address - region->iova);
}

// Executes a request. Returns the kind of the answer, and sets its data.
Kind execute(Device& device, Qp& qp, const Header& header, const uint8_t* data,
             std::vector<uint8_t>& answer) {
  const auto opcode = static_cast<ibv_wr_opcode>(header.opcode);
  const bool takes_receive = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
                             opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (takes_receive && qp.waiting().empty()) return Kind::kNotReady;
  if (writes(opcode)) {
    if (!(static_cast<unsigned int>(qp.attributes.qp_access_flags) & IBV_ACCESS_REMOTE_WRITE))
      return Kind::kRefused;
    if (header.length) {
      uint8_t* to = remote_memory(device, qp, header, header.length, IBV_ACCESS_REMOTE_WRITE);
      if (!to) return Kind::kRefused;
      std::memcpy(to, data, header.length);
    }
  } else if (opcode == IBV_WR_RDMA_READ) {
    const uint8_t* from = remote_memory(device, qp, header, header.swap, IBV_ACCESS_REMOTE_READ);
    if (!from) return Kind::kRefused;
    answer.assign(from, from + header.swap);
  } else if (is_atomic(opcode)) {
    auto* number = reinterpret_cast<uint64_t*>(
        remote_memory(device, qp, header, sizeof(uint64_t), IBV_ACCESS_REMOTE_ATOMIC));
    if (!number || header.address % sizeof(uint64_t)) return Kind::kRefused;
    uint64_t before = 0;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      before = __atomic_fetch_add(number, header.compare_add, __ATOMIC_SEQ_CST);
    } else {
      before = header.compare_add;
      __atomic_compare_exchange_n(number, &before, header.swap, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST);
    }
    answer.resize(sizeof(before));
    std::memcpy(answer.data(), &before, sizeof(before));
  }
  if (!takes_receive) return Kind::kAnswer;
  const Receive receive = take_receive(device, qp);
  ibv_wc completion = {};
  completion.wr_id = receive.id;
  completion.qp_num = qp.qp_num;
  completion.src_qp = header.from_qpn;
  completion.byte_len = header.length;
  completion.opcode =
      opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  if (opcode != IBV_WR_SEND) {
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = header.immediate;
  }
  if (opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
    const int64_t room = check_pieces(device, receive.pieces, true);
    if (room < 0 || room < header.length) {
      completion.status = room < 0 ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR;
    } else {
      scatter(receive.pieces, data, header.length);
    }
  }
  complete(*static_cast<Cq*>(qp.recv_cq), completion);
  if (completion.status == IBV_WC_SUCCESS) return Kind::kAnswer;
  fail_queue_pair(device, qp);
  return Kind::kRefused;
}

void take_request(Device& device, Qp& qp, const Header& header, const uint8_t* data) {
  if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS) return;
  if (header.psn == ((qp.expected_psn - 1) & 0xffffff) && !qp.last_answer.empty()) {
    send_to(qp, qp.last_answer);
    return;
  }
  if (header.psn != qp.expected_psn) return;
  std::vector<uint8_t> answer;
  const Kind kind = execute(device, qp, header, data, answer);
  Header reply = {};
  reply.kind = kind;
  reply.from_qpn = qp.qp_num;
  reply.to_qpn = header.from_qpn;
  reply.psn = header.psn;
  reply.length = static_cast<uint32_t>(answer.size());
  const std::vector<uint8_t> packet = make_packet(reply, answer.data());
  if (kind == Kind::kAnswer) {
    qp.expected_psn = (qp.expected_psn + 1) & 0xffffff;
    qp.last_answer = packet;
  }
  send_to(qp, packet);
  if (kind == Kind::kRefused) fail_queue_pair(device, qp);
}

// Stores a datagram in a receive, or drops it if none is posted. The first 40 bytes of the receive
// are for the header.
void take_datagram(Device& device, Qp& qp, const Header& header, const uint8_t* data) {
  if (qp.qp_type != IBV_QPT_UD || qp.state < IBV_QPS_RTR || qp.state > IBV_QPS_RTS) return;
  if (header.key != qp.attributes.qkey || qp.waiting().empty()) return;
  const Receive receive = take_receive(device, qp);
  std::vector<uint8_t> bytes(sizeof(ibv_grh) + header.length);
  std::memcpy(bytes.data() + sizeof(ibv_grh), data, header.length);
  ibv_wc completion = {};
  completion.wr_id = receive.id;
  completion.qp_num = qp.qp_num;
  completion.src_qp = header.from_qpn;
  completion.byte_len = static_cast<uint32_t>(bytes.size());
  completion.opcode = IBV_WC_RECV;
  completion.wc_flags = IBV_WC_GRH;
  const int64_t room = check_pieces(device, receive.pieces, true);
  if (room < 0 || room < static_cast<int64_t>(bytes.size()))
    give_up("a receive of datagrams has no room");
  scatter(receive.pieces, bytes.data(), bytes.size());
  complete(*static_cast<Cq*>(qp.recv_cq), completion);
}

void receive_packets(Device& device, Qp& qp) {
  std::vector<uint8_t> packet(sizeof(Header) + kMessageBytesMax);
  for (;;) {
    const ssize_t size = recv(qp.fd, packet.data(), packet.size(), MSG_DONTWAIT);
    if (size < static_cast<ssize_t>(sizeof(Header))) return;
    Header header;
    std::memcpy(&header, packet.data(), sizeof(header));
    if (header.to_qpn != qp.qp_num) continue;
    if (header.kind == Kind::kDatagram) {
      take_datagram(device, qp, header, packet.data() + sizeof(header));
      continue;
    }
    if (header.from_qpn != qp.attributes.dest_qp_num) continue;
    const uint8_t* data = packet.data() + sizeof(header);
    if (header.kind == Kind::kRequest) {
      take_request(device, qp, header, data);
    } else {
      take_answer(device, qp, header, data);
    }
  }
}

// Sends the first request if it is due. Returns whether a request waits for its answer.
bool advance_sends(Device& device, Qp& qp, int64_t now) {
  if (qp.state != IBV_QPS_RTS || qp.sends.empty()) return false;
  if (qp.is_under_way && now - qp.began_ms > retry_ms()) {
    end_send(qp, IBV_WC_RETRY_EXC_ERR);
    fail_queue_pair(device, qp);
    return false;
  }
  constexpr int64_t kResendMs = 50;
  if (now >= qp.not_before_ms && (!qp.is_under_way || now - qp.sent_ms > kResendMs))
    begin_send(device, qp, now);
  return true;
}

}  // namespace

void run_engine(Device& device) {
  bool waits = false;
  for (;;) {
    std::vector<pollfd> fds = {{.fd = device.wake_fd, .events = POLLIN, .revents = 0}};
    {
      const std::lock_guard guard(device.lock);
      if (device.ends) return;
      for (const Qp* qp : device.queue_pairs) fds.push_back({qp->fd, POLLIN, 0});
    }
    poll(fds.data(), fds.size(), waits ? 1 : -1);
    eventfd_t count = 0;
    eventfd_read(device.wake_fd, &count);
    const std::lock_guard guard(device.lock);
    const int64_t now = now_ms();
    waits = false;
    for (Qp* qp : device.queue_pairs) {
      receive_packets(device, *qp);
      waits |= advance_sends(device, *qp, now);
    }
  }
}

}  // namespace stub
