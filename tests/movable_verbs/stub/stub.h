// A device without hardware, behind the interface of libibverbs: reliable connections and datagrams
// between processes of one machine, over UNIX datagram sockets. Real bytes move, and keys, ranges,
// access and packet numbers are checked as a device checks them.
//
// The environment: PPMR_STUB_FABRIC is the directory of the sockets. PPMR_STUB_PLACE is a file with
// the number of the machine on which the process is. The device reads it when it is opened, so a
// test moves a process by writing another number. A second number in the file limits how many
// objects the device can make. While the fabric has a file named cut, packets are lost. After
// PPMR_STUB_RETRY_MS milliseconds a silent peer is an error.
//
// It is stricter than a device. It ends the process when a completion queue overflows, when a queue
// is destroyed before its events are acknowledged, and when a send uses an address handle that does
// not exist. In a failed completion it fills the fields without a meaning with wrong values.
#pragma once

#include <infiniband/verbs.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace stub {

struct Device;

struct Channel : ibv_comp_channel {
  int write_fd = -1;
};

struct Cq : ibv_cq {
  std::deque<ibv_wc> completions;
  int armed = 0;
  uint64_t events_read = 0, events_acknowledged = 0;
  int users = 0;
};

struct Pd : ibv_pd {
  int users = 0;
};

struct Mr : ibv_mr {
  uint64_t iova = 0;
  unsigned int access = 0;
};

struct Send {
  ibv_send_wr request = {};
  std::vector<ibv_sge> pieces;
  std::vector<uint8_t> inline_bytes;
};

struct Receive {
  uint64_t id = 0;
  std::vector<ibv_sge> pieces;
};

struct Srq : ibv_srq {
  std::deque<Receive> receives;
  ibv_srq_attr attributes = {};
  int users = 0;
};

struct Ah : ibv_ah {
  ibv_ah_attr attributes = {};
};

struct Qp : ibv_qp {
  std::deque<Receive>& waiting() { return srq ? static_cast<Srq*>(srq)->receives : receives; }

  ibv_qp_init_attr init = {};
  ibv_qp_attr attributes = {};
  int fd = -1;
  std::string path;
  std::deque<Send> sends;
  std::deque<Receive> receives;
  // The first send: whether it was sent, when first and when last, and when it may be sent again.
  bool is_under_way = false;
  int64_t began_ms = 0, sent_ms = 0, not_before_ms = 0;
  uint32_t next_psn = 0, expected_psn = 0;
  std::vector<uint8_t> last_answer;  // sent again as the answer to a repeated request
};

struct Device : verbs_context {
  std::mutex lock;  // guards the device and all its objects
  std::thread engine;
  int wake_fd = -1;
  bool ends = false;
  int async_write_fd = -1;
  std::string machine;  // its IPv4 address
  int objects_max = 1 << 20;
  std::set<Qp*> queue_pairs;
  std::set<Ah*> paths;
  std::map<uint32_t, Mr*> regions;  // by number: the key without its lowest byte
  int objects = 0;                  // objects that exist; ibv_close_device() fails unless 0
};

inline Device& of(ibv_context* context) { return *static_cast<Device*>(verbs_get_ctx(context)); }

constexpr uint32_t kRemoteKeyBit = 0x40000000;  // a remote key is never a valid local key
constexpr uint32_t kMessageBytesMax = 1 << 16;

void run_engine(Device& device);
void wake(Device& device);
// The caller of the following functions holds the lock.
void complete(Cq& cq, const ibv_wc& completion);
Receive take_receive(Device& device, Qp& qp);  // requires a posted receive
void fail_queue_pair(Device& device, Qp& qp);
Mr* find_region(Device& device, uint32_t key, bool is_remote);

[[noreturn]] void give_up(const char* what);

}  // namespace stub
