// One of two ends that use everything that movable verbs support. Each end checks everything that
// arrives: every byte of messages, writes and reads, the order of messages, and the sum of atomics.
//
//     checker --name a --partner b --exchange DIR [--queue-pairs N] [--threads N]
//             [--events] [--builder] [--extended] [--separate] [--shared] [--datagrams] [--wait]
//             [--forgetful]
//
// With --shared all queue pairs take their receives from one queue, which the end fills only when
// the device reports its limit. With --datagrams each round includes a datagram and its answer.
// With --forgetful each round registers memory, gives its page back to the kernel, and deregisters
// it. If the kernel then shows the page as written, the end creates DIR/NAME.shown. The ends
// exchange addresses in files of DIR; with --wait they connect when DIR/go.now exists. Traffic runs
// until DIR/stop.now exists. Then each end waits for its requests in flight and compares its sums
// with those of its partner. After each round an end writes the number of rounds to
// DIR/NAME.progress. Exit code 0: everything was right; 1: something was wrong; 3: a completion had
// an error, which the end prints with its status.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/movable_verbs/talker.h"

namespace {

constexpr uint32_t kMessageBytes = 2048;
constexpr uint32_t kInlineBytes = 32;
constexpr int kDepth = 16;  // receives and sends of a queue pair
constexpr uint64_t kReceiveId = uint64_t{1} << 32;

struct Options {
  std::string name, partner, exchange;
  int queue_pairs = 2, threads = 1;
  bool events = false, builder = false, extended = false, separate = false, waits = false;
  bool shared = false, datagrams = false, forgetful = false;
};

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "checker: " << what << ": " << std::strerror(errno) << std::endl;
  std::_Exit(1);
}

template <typename T>
T* need(T* object, const char* what) {
  if (!object) fail(what);
  return object;
}
void need(int error, const char* what) {
  errno = error;
  if (error != 0) fail(what);
}

// Returns byte `index` of message `number` that the end `who` sends on queue pair `pair`.
uint8_t pattern(char who, uint32_t pair, uint64_t number, uint32_t index) {
  return static_cast<uint8_t>(number * 131 + index * 7 + pair * 29 + static_cast<uint8_t>(who));
}

struct Address {
  uint32_t qpn = 0, psn = 0, key = 0;
  uint64_t memory = 0;
  std::string gid;
};

// The memory that the partner accesses: room for its writes, bytes for its reads, and a counter for
// its atomics.
struct Shared {
  uint8_t written[kDepth][kMessageBytes];
  uint8_t readable[kMessageBytes];
  uint64_t counter;
};

// The receive queue that all queue pairs share, with its buffers.
class SharedQueue {
 public:
  SharedQueue(ibv_context* context, ibv_pd* pd, int slots)
      : context_(context), buffers_(static_cast<size_t>(slots) * kMessageBytes) {
    region_ = need(ibv_reg_mr(pd, buffers_.data(), buffers_.size(), IBV_ACCESS_LOCAL_WRITE),
                   "register shared buffers");
    ibv_srq_init_attr init = {};
    init.attr.max_wr = static_cast<uint32_t>(slots);
    init.attr.max_sge = 1;
    srq_ = need(ibv_create_srq(pd, &init), "create a shared receive queue");
    limit_ = static_cast<uint32_t>(slots / 2);
    for (int slot = 0; slot < slots; ++slot) free_.push_back(slot);
    fill_up();
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
  }

  ibv_srq* srq() const { return srq_; }
  uint8_t* buffer(int slot) { return buffers_.data() + slot * kMessageBytes; }
  void free(int slot) { free_.push_back(slot); }

  // Fills the queue only after the device has reported the limit. A lost event therefore stops the
  // traffic.
  void look_for_events() {
    // Waits until enough used slots are free again. With fewer, the queue could stay below its
    // limit, and the device would report no further event.
    if (has_event_ && free_.size() >= limit_) fill_up();
    pollfd ready = {context_->async_fd, POLLIN, 0};
    ibv_async_event event = {};
    if (poll(&ready, 1, 0) != 1 || ibv_get_async_event(context_, &event) != 0) return;
    ibv_ack_async_event(&event);
    if (event.event_type == IBV_EVENT_QP_FATAL) return;  // the completions report this error, too
    if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED || event.element.srq != srq_)
      fail("a foreign event");
    has_event_ = true;
  }

 private:
  void fill_up() {
    has_event_ = false;
    for (const int slot : free_) {
      ibv_sge piece = {reinterpret_cast<uint64_t>(buffer(slot)), kMessageBytes, region_->lkey};
      ibv_recv_wr request = {}, *bad = nullptr;
      request.wr_id = kReceiveId | static_cast<uint64_t>(slot);
      request.sg_list = &piece;
      request.num_sge = 1;
      need(ibv_post_srq_recv(srq_, &request, &bad), "post a shared receive");
    }
    free_.clear();
    ibv_srq_attr wanted = {};
    wanted.srq_limit = limit_;
    need(ibv_modify_srq(srq_, &wanted, IBV_SRQ_LIMIT), "set the limit");
  }

  ibv_context* context_;
  std::vector<uint8_t> buffers_;
  ibv_mr* region_ = nullptr;
  ibv_srq* srq_ = nullptr;
  uint32_t limit_ = 0;
  bool has_event_ = false;
  std::vector<int> free_;
};

class Pair {
 public:
  Pair(const Options& options, ibv_context* context, ibv_pd* pd, ibv_cq* sends, ibv_cq* receives,
       SharedQueue* shared, uint32_t number)
      : options_(options),
        shared_queue_(shared),
        number_(number),
        buffers_(2 * kDepth * kMessageBytes) {
    shared_ = std::make_unique<Shared>();
    for (uint32_t i = 0; i < kMessageBytes; ++i)
      shared_->readable[i] = pattern(options.name[0], number, 0, i);
    buffer_region_ = need(ibv_reg_mr(pd, buffers_.data(), buffers_.size(), IBV_ACCESS_LOCAL_WRITE),
                          "register buffers");
    read_region_ = need(ibv_reg_mr(pd, read_, sizeof(read_), IBV_ACCESS_LOCAL_WRITE), "register");
    atomic_region_ =
        need(ibv_reg_mr(pd, &atomic_, sizeof(atomic_), IBV_ACCESS_LOCAL_WRITE), "register");
    shared_region_ = need(ibv_reg_mr(pd, shared_.get(), sizeof(Shared),
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                         IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
                          "register shared memory");
    ibv_qp_init_attr_ex init = {};
    init.send_cq = sends;
    init.recv_cq = receives;
    init.cap = {4 * kDepth, kDepth, 2, 2, kInlineBytes};
    init.qp_type = IBV_QPT_RC;
    if (shared) init.srq = shared->srq();
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = pd;
    if (options.builder) {
      init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                            IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    }
    qp_ = need(ibv_create_qp_ex(context, &init), "create a queue pair");
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE;
    need(ibv_modify_qp(qp_, &attributes,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "INIT");
    for (int i = 0; i < kDepth && !shared; ++i) post_receive(i);
  }

  Address address(ibv_context* context) const {
    union ibv_gid gid;
    need(ibv_query_gid(context, 1, 1, &gid), "query the GID");
    std::string text;
    char digits[3];
    for (const uint8_t byte : gid.raw) {
      std::snprintf(digits, sizeof(digits), "%02x", byte);
      text += digits;
    }
    return {qp_->qp_num, 100 + number_, shared_region_->rkey,
            reinterpret_cast<uint64_t>(shared_.get()), text};
  }

  void connect(const Address& peer, uint32_t own_psn) {
    peer_ = peer;
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.qpn;
    attributes.rq_psn = peer.psn;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = 1;
    for (size_t i = 0; i < 16; ++i)
      attributes.ah_attr.grh.dgid.raw[i] =
          static_cast<uint8_t>(std::stoi(peer.gid.substr(2 * i, 2), nullptr, 16));
    need(ibv_modify_qp(qp_, &attributes,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "RTR");
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = 7;
    attributes.rnr_retry = 7;
    attributes.sq_psn = own_psn;
    attributes.max_rd_atomic = 4;
    need(ibv_modify_qp(qp_, &attributes,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
         "RTS");
  }

  // Posts a round, unless one is in flight: a message, a short inline message, a write with an
  // immediate number, a read and an atomic.
  void post_round() {
    if (in_flight_ > 0) return;
    const uint64_t number = sent_;
    uint8_t* buffer = buffers_.data() + (number % kDepth) * kMessageBytes;
    // A round takes three receives of the partner: for two messages and a write.
    fill(buffer, kMessageBytes, number);
    send(number, buffer, kMessageBytes, false);
    uint8_t small[kInlineBytes];
    fill(small, kInlineBytes, number + 1);
    send(number + 1, small, kInlineBytes, true);
    std::memset(small, 0, sizeof(small));  // inline data may be reused at once
    uint8_t* written = buffers_.data() + ((number + 2) % kDepth) * kMessageBytes;
    fill(written, kMessageBytes, number + 2);
    write(number + 2, written);
    sent_ += 3;
    read();
    add();
    in_flight_ = 3;  // completions: the second message (the first has none), the read, the atomic
  }

  bool is_idle() const { return in_flight_ == 0; }
  uint32_t qpn() const { return qp_->qp_num; }
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  uint64_t atomics() const { return atomics_; }
  uint64_t counter() const { return __atomic_load_n(&shared_->counter, __ATOMIC_SEQ_CST); }

  // Checks a completion of this queue pair, and counts what it completes.
  void take(const ibv_wc& completion) {
    if (completion.status != IBV_WC_SUCCESS) {
      std::cerr << "checker: completion with status " << completion.status << " of "
                << completion.wr_id << std::endl;
      std::_Exit(3);
    }
    if (completion.wr_id & kReceiveId) return receive(completion);
    --in_flight_;
    if (completion.opcode == IBV_WC_RDMA_READ) {
      check(read_, kMessageBytes, 0, options_.partner[0], "read");
    } else if (completion.opcode == IBV_WC_FETCH_ADD) {
      if (atomic_ != atomics_) wrong("an atomic returned " + std::to_string(atomic_));
      ++atomics_;
    } else if (completion.wr_id != sent_ - 2) {
      wrong("a completion has a wrong number");
    }
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    std::cerr << "checker: WRONG: queue pair " << number_ << ": " << what << std::endl;
    std::_Exit(1);
  }

  void fill(uint8_t* to, uint32_t length, uint64_t number) const {
    for (uint32_t i = 0; i < length; ++i) to[i] = pattern(options_.name[0], number_, number, i);
  }

  void check(const uint8_t* data, uint32_t length, uint64_t number, char who, const char* what) {
    for (uint32_t i = 0; i < length; ++i) {
      if (data[i] != pattern(who, number_, number, i))
        wrong(std::string(what) + " " + std::to_string(number) + " differs at byte " +
              std::to_string(i));
    }
  }

  void post_receive(int slot) {
    if (shared_queue_) return shared_queue_->free(slot);
    ibv_sge piece = {reinterpret_cast<uint64_t>(receive_buffer(slot)), kMessageBytes,
                     buffer_region_->lkey};
    ibv_recv_wr request = {}, *bad = nullptr;
    request.wr_id = kReceiveId | static_cast<uint64_t>(slot);
    request.sg_list = &piece;
    request.num_sge = 1;
    need(ibv_post_recv(qp_, &request, &bad), "post a receive");
  }

  uint8_t* receive_buffer(int slot) {
    if (shared_queue_) return shared_queue_->buffer(slot);
    return buffers_.data() + (kDepth + slot) * kMessageBytes;
  }

  void receive(const ibv_wc& completion) {
    const int slot = static_cast<int>(completion.wr_id & 0xffff);
    const uint64_t number = received_++;
    if (completion.src_qp != peer_.qpn) wrong("a message has a wrong sender");
    if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      if (number % 3 != 2 || completion.imm_data != static_cast<uint32_t>(number))
        wrong("the order of messages at a write, " + std::to_string(number));
      check(shared_->written[number % kDepth], kMessageBytes, number, options_.partner[0], "write");
    } else {
      const uint32_t length = number % 3 == 0 ? kMessageBytes : kInlineBytes;
      if (completion.byte_len != length) wrong("a message has a wrong length");
      check(receive_buffer(slot), length, number, options_.partner[0], "message");
    }
    std::memset(receive_buffer(slot), 0, kMessageBytes);
    post_receive(slot);
  }

  void post(ibv_send_wr& request) {
    ibv_send_wr* bad = nullptr;
    need(ibv_post_send(qp_, &request, &bad), "post a send");
  }

  void send(uint64_t id, uint8_t* data, uint32_t length, bool is_inline) {
    const unsigned int flags = is_inline ? IBV_SEND_SIGNALED | IBV_SEND_INLINE : 0u;
    if (options_.builder) {
      ibv_qp_ex* qp = ibv_qp_to_qp_ex(qp_);
      ibv_wr_start(qp);
      qp->wr_id = id;
      qp->wr_flags = flags & ~static_cast<unsigned int>(IBV_SEND_INLINE);
      ibv_wr_send(qp);
      if (is_inline) {
        ibv_wr_set_inline_data(qp, data, length);
      } else {
        ibv_wr_set_sge(qp, buffer_region_->lkey, reinterpret_cast<uint64_t>(data), length);
      }
      return need(ibv_wr_complete(qp), "complete the builder");
    }
    ibv_sge piece = {reinterpret_cast<uint64_t>(data), length, buffer_region_->lkey};
    ibv_send_wr request = {};
    request.wr_id = id;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = flags;
    post(request);
  }

  void write(uint64_t number, uint8_t* data) {
    const uint64_t to =
        peer_.memory + offsetof(Shared, written) + (number % kDepth) * kMessageBytes;
    const auto immediate = static_cast<uint32_t>(number);
    if (options_.builder) {
      ibv_qp_ex* qp = ibv_qp_to_qp_ex(qp_);
      ibv_wr_start(qp);
      qp->wr_id = number;
      qp->wr_flags = 0;
      ibv_wr_rdma_write_imm(qp, peer_.key, to, immediate);
      ibv_wr_set_sge(qp, buffer_region_->lkey, reinterpret_cast<uint64_t>(data), kMessageBytes);
      return need(ibv_wr_complete(qp), "complete the builder");
    }
    ibv_sge piece = {reinterpret_cast<uint64_t>(data), kMessageBytes, buffer_region_->lkey};
    ibv_send_wr request = {};
    request.wr_id = number;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = immediate;
    request.wr.rdma.remote_addr = to;
    request.wr.rdma.rkey = peer_.key;
    post(request);
  }

  void read() {
    ibv_sge piece = {reinterpret_cast<uint64_t>(read_), kMessageBytes, read_region_->lkey};
    ibv_send_wr request = {};
    request.wr_id = 0;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = peer_.memory + offsetof(Shared, readable);
    request.wr.rdma.rkey = peer_.key;
    std::memset(read_, 0, sizeof(read_));
    post(request);
  }

  void add() {
    ibv_sge piece = {reinterpret_cast<uint64_t>(&atomic_), sizeof(atomic_), atomic_region_->lkey};
    ibv_send_wr request = {};
    request.wr_id = 0;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.atomic.remote_addr = peer_.memory + offsetof(Shared, counter);
    request.wr.atomic.rkey = peer_.key;
    request.wr.atomic.compare_add = 1;
    post(request);
  }

  const Options& options_;
  SharedQueue* const shared_queue_;
  const uint32_t number_;
  std::vector<uint8_t> buffers_;
  std::unique_ptr<Shared> shared_;
  uint8_t read_[kMessageBytes] = {};
  uint64_t atomic_ = 0;
  ibv_mr *buffer_region_ = nullptr, *read_region_ = nullptr, *atomic_region_ = nullptr,
         *shared_region_ = nullptr;
  ibv_qp* qp_ = nullptr;
  Address peer_;
  uint64_t sent_ = 0, received_ = 0, atomics_ = 0;
  int in_flight_ = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  std::ofstream(fresh) << text;
  if (std::rename(fresh.c_str(), path.c_str()) != 0) fail("write " + path);
}

std::string await_file(const std::string& path) {
  for (;;) {
    if (std::string text = read_file(path); !text.empty()) return text;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

class Checker {
 public:
  explicit Checker(const Options& options) : options_(options) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (!list || count == 0) fail("find a device");
    context_ = need(ibv_open_device(list[0]), "open the device");
    ibv_free_device_list(list);
    pd_ = need(ibv_alloc_pd(context_), "allocate a protection domain");
    channel_ = need(ibv_create_comp_channel(context_), "create a channel");
    const int size = options.queue_pairs * 8 * kDepth;
    queues_.push_back(make_queue(size));
    if (options.separate) queues_.push_back(make_queue(size));
    if (options.shared)
      shared_ = std::make_unique<SharedQueue>(context_, pd_, options.queue_pairs * kDepth);
    if (options.datagrams)
      talker_ = std::make_unique<ppmr::verbs::Talker>(context_, pd_, options.name, options.partner);
    for (int i = 0; i < options.queue_pairs; ++i) {
      pairs_.push_back(std::make_unique<Pair>(options, context_, pd_, queues_.front(),
                                              queues_.back(), shared_.get(),
                                              static_cast<uint32_t>(i)));
      by_number_[pairs_.back()->qpn()] = pairs_.back().get();
    }
  }

  void connect() {
    std::string mine;
    for (const auto& pair : pairs_) {
      const Address address = pair->address(context_);
      mine += std::to_string(address.qpn) + " " + std::to_string(address.psn) + " " +
              std::to_string(address.key) + " " + std::to_string(address.memory) + " " +
              address.gid + "\n";
    }
    if (talker_)
      mine += std::to_string(talker_->qpn()) + " " + pairs_.front()->address(context_).gid + "\n";
    write_file(place(options_.name, "address"), mine);
    if (options_.waits) await_file(place("go", "now"));
    std::istringstream theirs(await_file(place(options_.partner, "address")));
    uint32_t number = 0;
    for (const auto& pair : pairs_) {
      Address peer;
      theirs >> peer.qpn >> peer.psn >> peer.key >> peer.memory >> peer.gid;
      pair->connect(peer, 100 + number++);
    }
    if (talker_) {
      ppmr::verbs::TalkerAddress peer;
      theirs >> peer.qpn >> peer.gid;
      talker_->connect(peer);
    }
    write_file(place(options_.name, "connected"), "yes\n");
    await_file(place(options_.partner, "connected"));
  }

  // Registers a page, gives it back to the kernel, and deregisters it. Returns whether the page
  // exists again: then the library has touched it, so that the kernel shows it as written.
  bool forget_memory() const {
    const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("map memory");
    ibv_mr* region = need(ibv_reg_mr(pd_, memory, bytes, IBV_ACCESS_LOCAL_WRITE), "register");
    need(madvise(memory, bytes, MADV_DONTNEED) == 0 ? 0 : errno, "give memory back");
    need(ibv_dereg_mr(region), "deregister");
    unsigned char is_there = 0;
    need(mincore(memory, bytes, &is_there) == 0 ? 0 : errno, "look for memory");
    munmap(memory, bytes);
    return (is_there & 1) != 0;
  }

  void run() {
    uint64_t rounds = 0;
    bool stops = false;
    while (!stops || !is_idle()) {
      if (!stops) stops = access(place("stop", "now").c_str(), F_OK) == 0;
      if (!stops && (is_idle() || (are_pairs_idle() && talker_->has_waited_long()))) {
        for (const auto& pair : pairs_) pair->post_round();
        if (talker_) talker_->talk();
        if (options_.forgetful && forget_memory()) write_file(place(options_.name, "shown"), "\n");
        write_file(place(options_.name, "progress"), std::to_string(++rounds) + "\n");
      }
      poll_all();
    }
    // Waits until everything that the partner has sent has arrived, and compares the sums.
    std::string sums;
    for (const auto& pair : pairs_)
      sums += std::to_string(pair->sent()) + " " + std::to_string(pair->atomics()) + "\n";
    write_file(place(options_.name, "sums"), sums);
    std::string theirs;
    while (theirs.empty()) {
      poll_all();
      theirs = read_file(place(options_.partner, "sums"));
    }
    std::istringstream expected(theirs);
    for (const auto& pair : pairs_) {
      uint64_t sent = 0, atomics = 0;
      expected >> sent >> atomics;
      while (pair->received() < sent) poll_all();
      if (pair->received() != sent) fail("more messages than sent");
      if (pair->counter() != atomics) {
        std::cerr << "checker: WRONG: atomics: " << pair->counter() << " of " << atomics << "\n";
        std::_Exit(1);
      }
    }
    std::cout << options_.name << ": rounds " << rounds << ", queue pairs " << pairs_.size()
              << ": all right" << std::endl;
    write_file(place(options_.name, "finished"), "yes\n");
    while (read_file(place(options_.partner, "finished")).empty()) poll_all();
  }

 private:
  std::string place(const std::string& name, const char* what) const {
    return options_.exchange + "/" + name + "." + what;
  }

  ibv_cq* make_queue(int size) {
    ibv_comp_channel* channel = options_.events ? channel_ : nullptr;
    ibv_cq* made = nullptr;
    if (options_.extended) {
      ibv_cq_init_attr_ex wanted = {};
      wanted.cqe = static_cast<uint32_t>(size);
      wanted.channel = channel;
      wanted.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                        IBV_WC_EX_WITH_SRC_QP;
      made = ibv_cq_ex_to_cq(need(ibv_create_cq_ex(context_, &wanted), "create a cq_ex"));
    } else {
      made = need(ibv_create_cq(context_, size, nullptr, channel, 0), "create a queue");
    }
    if (channel) need(ibv_req_notify_cq(made, 0), "request an event");
    return made;
  }

  bool are_pairs_idle() const {
    for (const auto& pair : pairs_) {
      if (!pair->is_idle()) return false;
    }
    return true;
  }
  bool is_idle() const { return are_pairs_idle() && (!talker_ || talker_->is_idle()); }

  int poll_queue(ibv_cq* queue) {
    if (options_.extended) {
      ibv_cq_ex* extended = reinterpret_cast<ibv_cq_ex*>(queue);
      ibv_poll_cq_attr attributes = {};
      int taken = 0;
      int error = ibv_start_poll(extended, &attributes);
      if (error == ENOENT) return 0;
      for (; error == 0; error = ibv_next_poll(extended), ++taken) {
        ibv_wc completion = {};
        completion.wr_id = extended->wr_id;
        completion.status = extended->status;
        completion.opcode = ibv_wc_read_opcode(extended);
        completion.byte_len = ibv_wc_read_byte_len(extended);
        completion.imm_data = ibv_wc_read_imm_data(extended);
        completion.qp_num = ibv_wc_read_qp_num(extended);
        completion.src_qp = ibv_wc_read_src_qp(extended);
        held_.push_back(completion);
      }
      ibv_end_poll(extended);
      // take() posts receives again, so it runs after the poll.
      for (const ibv_wc& completion : held_) take(completion);
      held_.clear();
      return taken;
    }
    ibv_wc completions[8];
    const int count = ibv_poll_cq(queue, 8, completions);
    if (count < 0) fail("poll");
    for (int i = 0; i < count; ++i) take(completions[i]);
    return count;
  }

  void take(const ibv_wc& completion) {
    const auto found = by_number_.find(completion.qp_num);
    if (found == by_number_.end()) fail("a completion of a foreign queue pair");
    found->second->take(completion);
  }

  void poll_all() {
    if (shared_) shared_->look_for_events();
    if (talker_) {
      talker_->poll();
      if (!talker_->is_idle()) talker_->talk();
    }
    int count = 0;
    for (ibv_cq* queue : queues_) count += poll_queue(queue);
    if (count > 0) return;
    if (!options_.events) {
      std::this_thread::yield();
      return;
    }
    pollfd ready = {channel_->fd, POLLIN, 0};
    if (poll(&ready, 1, 10) != 1) return;  // at most 10 ms, because the caller also looks for files
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    need(ibv_get_cq_event(channel_, &queue, &unused), "get an event");
    ibv_ack_cq_events(queue, 1);
    need(ibv_req_notify_cq(queue, 0), "request an event");
    while (poll_queue(queue) > 0) {
    }
  }

  const Options options_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  std::vector<ibv_cq*> queues_;
  std::unique_ptr<SharedQueue> shared_;
  std::unique_ptr<ppmr::verbs::Talker> talker_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::map<uint32_t, Pair*> by_number_;
  std::vector<ibv_wc> held_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (word == "--name")
      options.name = value();
    else if (word == "--partner")
      options.partner = value();
    else if (word == "--exchange")
      options.exchange = value();
    else if (word == "--queue-pairs")
      options.queue_pairs = std::stoi(value());
    else if (word == "--threads")
      options.threads = std::stoi(value());
    else if (word == "--events")
      options.events = true;
    else if (word == "--builder")
      options.builder = true;
    else if (word == "--extended")
      options.extended = true;
    else if (word == "--separate")
      options.separate = true;
    else if (word == "--shared")
      options.shared = true;
    else if (word == "--datagrams")
      options.datagrams = true;
    else if (word == "--forgetful")
      options.forgetful = true;
    else if (word == "--wait")
      options.waits = true;
    else
      fail("unknown option " + word);
  }
  // Each thread has a device and connections of its own.
  const auto check = [&options](int number) {
    Options own = options;
    if (number > 0) own.name += "." + std::to_string(number);
    if (number > 0) own.partner += "." + std::to_string(number);
    Checker checker(own);
    checker.connect();
    checker.run();
  };
  std::vector<std::thread> others;
  for (int i = 1; i < options.threads; ++i) others.emplace_back(check, i);
  check(0);
  for (std::thread& other : others) other.join();
  return 0;
}
