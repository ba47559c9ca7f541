// The interface start_poll, next_poll, end_poll of an ibv_cq_ex. It polls one completion at a time
// with poll_cq. As with a real device, a thread that has called start_poll keeps other threads out
// until end_poll.
#include <cerrno>

#include "verbs_library/shadow/completion.h"

namespace ppmr::verbs {
namespace {

Cq& of(ibv_cq_ex* cq) { return *static_cast<Cq*>(cq); }

int fetch(Cq& cq) {
  const int count = poll_completions(cq.as_cq(), 1, &cq.current);
  if (count < 0) return EIO;
  if (count == 0) return ENOENT;
  cq.wr_id = cq.current.wr_id;
  cq.status = cq.current.status;
  return 0;
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
  if (attributes->comp_mask) return EINVAL;
  of(cq).extended_lock.lock();
  const int error = fetch(of(cq));
  if (error != 0) of(cq).extended_lock.unlock();  // the manual forbids end_poll in this case
  return error;
}

int next_poll(ibv_cq_ex* cq) { return fetch(of(cq)); }
void end_poll(ibv_cq_ex* cq) { of(cq).extended_lock.unlock(); }

}  // namespace

void set_extended_functions(Cq& cq) {
  if (!cq.is_extended) return;
  cq.start_poll = start_poll;
  cq.next_poll = next_poll;
  cq.end_poll = end_poll;
  cq.read_opcode = [](ibv_cq_ex* one) { return of(one).current.opcode; };
  cq.read_vendor_err = [](ibv_cq_ex* one) { return of(one).current.vendor_err; };
  cq.read_byte_len = [](ibv_cq_ex* one) { return of(one).current.byte_len; };
  cq.read_imm_data = [](ibv_cq_ex* one) -> __be32 { return of(one).current.imm_data; };
  cq.read_qp_num = [](ibv_cq_ex* one) { return of(one).current.qp_num; };
  cq.read_src_qp = [](ibv_cq_ex* one) { return of(one).current.src_qp; };
  cq.read_wc_flags = [](ibv_cq_ex* one) { return of(one).current.wc_flags; };
  cq.read_slid = [](ibv_cq_ex* one) { return uint32_t{of(one).current.slid}; };
  cq.read_sl = [](ibv_cq_ex* one) { return of(one).current.sl; };
  cq.read_dlid_path_bits = [](ibv_cq_ex* one) { return of(one).current.dlid_path_bits; };
}

}  // namespace ppmr::verbs
