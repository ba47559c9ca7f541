#include "verbs_library/shadow/builder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_library/shadow/send.h"

namespace ppmr::verbs {
namespace {

Builder& builder_of(ibv_qp_ex* qp) { return *static_cast<Qp*>(qp)->builder; }

// Returns a new request. If there is no room for it, notes an error, which fails the whole batch.
ibv_send_wr& add(ibv_qp_ex* qp, ibv_wr_opcode opcode) {
  Builder& builder = builder_of(qp);
  if (builder.count == builder.requests.size()) {
    builder.error = ENOMEM;
    return builder.requests.back();
  }
  ibv_send_wr& request = builder.requests[builder.count];
  request = {};
  request.wr_id = qp->wr_id;
  request.send_flags = qp->wr_flags;
  request.opcode = opcode;
  request.sg_list = &builder.pieces[builder.count * builder.pieces_max];
  ++builder.count;
  return request;
}

ibv_send_wr* current(Builder& builder) {
  return builder.count > 0 ? &builder.requests[builder.count - 1] : nullptr;
}

void start(ibv_qp_ex* qp) {
  Builder& builder = builder_of(qp);
  builder.lock.lock();
  builder.count = 0;
  builder.error = 0;
}

int complete(ibv_qp_ex* qp) {
  Builder& builder = builder_of(qp);
  int error = builder.error;
  if (error == 0 && builder.count > 0) {
    for (size_t i = 0; i + 1 < builder.count; ++i)
      builder.requests[i].next = &builder.requests[i + 1];
    ibv_send_wr* bad = nullptr;
    error = post_send(&qp->qp_base, builder.requests.data(), &bad);
  }
  builder.lock.unlock();
  return error;
}

void abort_requests(ibv_qp_ex* qp) { builder_of(qp).lock.unlock(); }

void send(ibv_qp_ex* qp) { add(qp, IBV_WR_SEND); }

void send_immediate(ibv_qp_ex* qp, __be32 immediate) {
  add(qp, IBV_WR_SEND_WITH_IMM).imm_data = immediate;
}

ibv_send_wr& add_remote(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint32_t key, uint64_t address) {
  ibv_send_wr& request = add(qp, opcode);
  request.wr.rdma.rkey = key;
  request.wr.rdma.remote_addr = address;
  return request;
}

void write(ibv_qp_ex* qp, uint32_t key, uint64_t address) {
  add_remote(qp, IBV_WR_RDMA_WRITE, key, address);
}

void write_immediate(ibv_qp_ex* qp, uint32_t key, uint64_t address, __be32 immediate) {
  add_remote(qp, IBV_WR_RDMA_WRITE_WITH_IMM, key, address).imm_data = immediate;
}

void read(ibv_qp_ex* qp, uint32_t key, uint64_t address) {
  add_remote(qp, IBV_WR_RDMA_READ, key, address);
}

void add_atomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint32_t key, uint64_t address,
                uint64_t compare_add, uint64_t swap) {
  auto& atomic = add(qp, opcode).wr.atomic;
  atomic.rkey = key;
  atomic.remote_addr = address;
  atomic.compare_add = compare_add;
  atomic.swap = swap;
}

void fetch_add(ibv_qp_ex* qp, uint32_t key, uint64_t address, uint64_t number) {
  add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, key, address, number, 0);
}

void compare_swap(ibv_qp_ex* qp, uint32_t key, uint64_t address, uint64_t compare, uint64_t swap) {
  add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, key, address, compare, swap);
}

void set_datagram_address(ibv_qp_ex* qp, ibv_ah* path, uint32_t qpn, uint32_t key) {
  Builder& builder = builder_of(qp);
  if (ibv_send_wr* request = current(builder)) {
    request->wr.ud = {.ah = path, .remote_qpn = qpn, .remote_qkey = key};
  } else {
    builder.error = EINVAL;
  }
}

void set_pieces(ibv_qp_ex* qp, size_t count, const ibv_sge* pieces) {
  Builder& builder = builder_of(qp);
  ibv_send_wr* request = current(builder);
  if (!request || count > builder.pieces_max) {
    builder.error = EINVAL;
    return;
  }
  std::copy_n(pieces, count, request->sg_list);
  request->num_sge = static_cast<int>(count);
}

void set_piece(ibv_qp_ex* qp, uint32_t key, uint64_t address, uint32_t length) {
  const ibv_sge piece = {.addr = address, .length = length, .lkey = key};
  set_pieces(qp, 1, &piece);
}

void set_inline_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* buffers) {
  Builder& builder = builder_of(qp);
  ibv_send_wr* request = current(builder);
  size_t length = 0;
  for (size_t i = 0; i < count; ++i) length += buffers[i].length;
  if (!request || length > builder.inline_bytes_max) {
    builder.error = EINVAL;
    return;
  }
  // Copies the bytes, because the program may overwrite them as soon as this call has returned.
  char* const begin = builder.inline_bytes.data() + (builder.count - 1) * builder.inline_bytes_max;
  char* place = begin;
  for (size_t i = 0; i < count; ++i) {
    if (buffers[i].length) std::memcpy(place, buffers[i].addr, buffers[i].length);
    place += buffers[i].length;
  }
  request->send_flags |= IBV_SEND_INLINE;
  request->sg_list[0] = {.addr = reinterpret_cast<uint64_t>(begin),
                         .length = static_cast<uint32_t>(length),
                         .lkey = 0};
  request->num_sge = length ? 1 : 0;
}

void set_inline(ibv_qp_ex* qp, void* address, size_t length) {
  const ibv_data_buf buffer = {.addr = address, .length = length};
  set_inline_list(qp, 1, &buffer);
}

}  // namespace

void set_builder(Qp& qp) {
  qp.builder = std::make_unique<Builder>(qp.init.cap.max_send_wr + 1,
                                         std::max<uint32_t>(qp.init.cap.max_send_sge, 1),
                                         qp.init.cap.max_inline_data);
  qp.wr_start = start;
  qp.wr_complete = complete;
  qp.wr_abort = abort_requests;
  qp.wr_send = send;
  qp.wr_send_imm = send_immediate;
  qp.wr_rdma_write = write;
  qp.wr_rdma_write_imm = write_immediate;
  qp.wr_rdma_read = read;
  qp.wr_atomic_fetch_add = fetch_add;
  qp.wr_atomic_cmp_swp = compare_swap;
  qp.wr_set_ud_addr = set_datagram_address;
  qp.wr_set_sge = set_piece;
  qp.wr_set_sge_list = set_pieces;
  qp.wr_set_inline_data = set_inline;
  qp.wr_set_inline_data_list = set_inline_list;
}

}  // namespace ppmr::verbs
