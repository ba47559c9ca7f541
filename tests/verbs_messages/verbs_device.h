// The RDMA device of this machine, and queue pairs on it. Everything of /dev/infiniband that a
// process has is in these two classes: when their objects are destroyed, nothing is open or mapped.
//
// Threads: one. Functions throw Failure when a call of libibverbs or of the kernel fails.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace verbs_messages {

class Failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Throws a Failure with the text of errno.
[[noreturn]] void fail(const std::string& what);

// The number of messages of a connection that the partner has not acknowledged yet.
inline constexpr size_t kWindow = 8;
// The partner sends at most a window of data, one acknowledgement for each message that it
// receives, a shutdown, and the answer to one. So a message always finds a posted receive.
inline constexpr size_t kReceiveSlots = 2 * kWindow + 4;
inline constexpr size_t kSendSlots = kReceiveSlots;
inline constexpr size_t kSlotBytes = (64 << 10) + 64;

struct VerbsDelete {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
};
template <typename T>
using VerbsPointer = std::unique_ptr<T, VerbsDelete>;

// The data that the partner needs to connect to a queue pair. Sent as bytes between equal machines.
struct QueuePairAddress {
  ibv_gid gid{};
  uint32_t number = 0;
  uint32_t psn = 0;  // the first packet sequence number
};

// The device. Destroy its queue pairs first.
class Device {
 public:
  // Opens the first device that has an IPv4 address.
  Device();

  // Returns the IPv4 address of the device, which is an address of this machine.
  std::string address() const;
  // Returns a descriptor for poll(2) with POLLIN, after arm().
  int fd() const { return channel_->fd; }
  // From now on the next completion makes fd() readable.
  void arm();
  // Takes the next completion. Returns false if there is none.
  bool next(ibv_wc& completion);

 private:
  friend class QueuePair;
  bool find_address(ibv_context* context);

  // Destroyed from the last member to the first.
  VerbsPointer<ibv_context> context_;
  VerbsPointer<ibv_pd> domain_;
  VerbsPointer<ibv_comp_channel> channel_;
  VerbsPointer<ibv_cq> completions_;
  ibv_gid gid_{};
  uint8_t gid_index_ = 0;
  uint8_t port_ = 0;
  ibv_mtu mtu_ = IBV_MTU_1024;
};

// One reliable connection and its registered memory. A completion names the queue pair by an id
// that its owner chose, so the owner recognises late completions of a destroyed queue pair.
class QueuePair {
 public:
  QueuePair(Device& device, uint32_t id);

  uint32_t id() const { return id_; }
  QueuePairAddress address() const;
  // After this call the queue pair receives. It may send once the partner has also connected.
  void connect(const QueuePairAddress& partner);

  bool can_send() const { return !free_.empty(); }
  // Returns whether all sent messages have arrived.
  bool is_idle() const { return free_.size() == kSendSlots; }
  // Copies both parts to a slot and sends it. Requires can_send().
  void send(std::span<const std::byte> head, std::span<const std::byte> body);

  // These functions take a successful completion of this queue pair.
  static uint32_t id_of(const ibv_wc& completion) { return uint32_t(completion.wr_id >> 32); }
  static bool is_receive(const ibv_wc& completion) { return (completion.wr_id & kReceive) != 0; }
  // Returns the received bytes, which are valid until repost().
  std::span<const std::byte> received(const ibv_wc& completion) const;
  void repost(const ibv_wc& completion) { post_receive(slot_of(completion)); }
  void sent(const ibv_wc& completion) { free_.push_back(slot_of(completion)); }

 private:
  static constexpr uint64_t kReceive = 1 << 16;
  static size_t slot_of(const ibv_wc& completion) { return completion.wr_id & 0xffff; }
  std::byte* slot(size_t number) const { return memory_.get() + number * kSlotBytes; }
  void post_receive(size_t slot);

  Device& device_;
  const uint32_t id_;
  uint32_t psn_ = 0;
  std::vector<size_t> free_;  // slots for sending; the numbers of receive slots are lower
  // Destroyed from the last member to the first: the memory must exist until the device no longer
  // uses it.
  std::unique_ptr<std::byte[]> memory_;
  VerbsPointer<ibv_mr> region_;
  VerbsPointer<ibv_qp> pair_;
};

}  // namespace verbs_messages
