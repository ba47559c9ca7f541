// Control connections over TCP, without blocking. A Call sends requests to a peer. The helper
// thread receives requests of peers over a Line (Visitor in helper.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "verbs_library/protocol/message.h"

namespace ppmr::verbs {

// A socket, with the messages that it sends and the message that it receives. Owns the descriptor.
class Line {
 public:
  Line() = default;
  explicit Line(int fd) : fd_(fd) {}
  Line(Line&& other) noexcept { swap(other); }
  Line& operator=(Line&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Line() { close(); }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();
  void forget() { fd_ = -1; }  // for a child after fork(2): the descriptor belongs to the parent
  void queue(const Message& message);
  bool has_output() const { return sent_ < out_.size(); }

  // Sends and receives what is possible now. Returns false, with errno, if the connection has
  // failed, if the peer has ended it (ECONNRESET), or if a message is malformed (EPROTO).
  bool advance();
  // Returns the next complete message, or nullopt.
  std::optional<Message> take();

 private:
  void swap(Line& other);
  bool receive();

  int fd_ = -1;
  std::vector<uint8_t> out_, in_;
  size_t sent_ = 0;
  bool is_garbled_ = false;
};

class Call {
 public:
  enum class State { kIdle, kRuns, kAnswered, kFailed };

  // Begins a call. Uses the connection of the last call if it leads to the same address.
  void start(const ControlAddress& to, const Message& request);
  void advance();
  void end() {
    line_.close();
    state_ = State::kIdle;
  }
  State state() const { return state_; }
  int error() const { return error_; }
  // Returns the answer of a call that is kAnswered. The call is kIdle afterwards.
  Message take_answer();
  Line& line() { return line_; }

 private:
  void fail(int error);

  Line line_;
  ControlAddress to_;
  Message answer_;
  State state_ = State::kIdle;
  int error_ = 0;
};

// Starts to connect, without waiting. Returns a descriptor, or -1 with errno.
int start_connect(const ControlAddress& to);

}  // namespace ppmr::verbs
