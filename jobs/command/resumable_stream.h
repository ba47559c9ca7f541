// A stream of bytes between a command's client and its job node, which continues on another
// connection. This file has the half of the sender and the half of the receiver. A position is a
// number of bytes since the start of the stream. Both halves are values: a copy is a snapshot.
// Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ppmr {

// The sender sends at most this many bytes that the receiver has not confirmed.
inline constexpr size_t kStreamWindowBytes = 256 << 10;
// The most bytes in one frame.
inline constexpr size_t kStreamPieceMaxBytes = 64 << 10;

struct StreamPiece {
  uint64_t position;
  std::string_view bytes;
};

// The sender's half. Keeps the bytes that are not confirmed. For a receiver that is rolled back,
// also keeps at least the last `history_bytes` of the confirmed bytes. Memory: the window, one
// put(), and twice the history.
class SentStream {
 public:
  explicit SentStream(size_t history_bytes) : history_bytes_(history_bytes) {}
  // Goes on from the state of another sender: `bytes` follow the first `confirmed` bytes of the
  // stream.
  SentStream(size_t history_bytes, uint64_t confirmed, std::string bytes)
      : history_bytes_(history_bytes),
        bytes_(std::move(bytes)),
        base_(confirmed),
        confirmed_(confirmed),
        sent_(confirmed) {}

  // Return the arguments of the constructor above, for a sender that goes on from this state.
  uint64_t confirmed() const { return std::min(confirmed_, produced()); }
  std::string unconfirmed() const {
    return bytes_.substr(static_cast<size_t>(confirmed() - std::min(base_, confirmed())));
  }

  // The number of bytes that the stream has so far.
  uint64_t produced() const { return base_ + bytes_.size(); }
  // Returns whether the caller may put() more.
  bool has_room() const { return produced() < confirmed_ + kStreamWindowBytes; }
  // The number of bytes that the receiver has, or will get on this connection.
  uint64_t sent() const { return sent_; }
  bool is_all_sent() const { return sent_ >= produced(); }

  void put(std::string_view bytes) {
    // A sender that was rolled back produces bytes again that the receiver has. Drops these bytes.
    const uint64_t again = sent_ > produced() ? sent_ - produced() : 0;
    const size_t skipped = static_cast<size_t>(std::min<uint64_t>(again, bytes.size()));
    base_ += skipped;
    bytes_.append(bytes.substr(skipped));
  }

  // Takes the next bytes to send on this connection. They are valid until the next call.
  std::optional<StreamPiece> take_next() {
    const uint64_t end = std::min(produced(), confirmed_ + kStreamWindowBytes);
    if (sent_ >= end) return std::nullopt;
    const auto size = static_cast<size_t>(std::min<uint64_t>(end - sent_, kStreamPieceMaxBytes));
    const StreamPiece piece{
        sent_, std::string_view(bytes_).substr(static_cast<size_t>(sent_ - base_), size)};
    sent_ += size;
    return piece;
  }

  // The receiver has passed on the bytes before `position`. Errors: EPROTO if they were not sent.
  Status confirm(uint64_t position) {
    if (position > sent_) {
      return failure(EPROTO, "the command's peer confirmed bytes that were not sent");
    }
    confirmed_ = std::max(confirmed_, position);
    forget();
    return {};
  }

  // Continues on a new connection, after the bytes that the receiver has. If this sender was rolled
  // back and is behind the receiver, put() skips the bytes that the receiver has. Errors: ENOBUFS
  // if the sender no longer keeps bytes that the receiver lacks; EPROTO if `passed_on` is more than
  // `received`.
  Status resume(uint64_t received, uint64_t passed_on) {
    if (passed_on > received) return failure(EPROTO, "the command's peer named a wrong position");
    if (received < base_) {
      return failure(ENOBUFS, "the sender no longer keeps " + std::to_string(base_ - received) +
                                  " bytes that the receiver lacks");
    }
    if (received > produced()) {
      base_ = produced();
      bytes_.clear();
    }
    sent_ = received;
    confirmed_ = passed_on;
    forget();
    return {};
  }

 private:
  void forget() {
    const uint64_t needed =
        std::min(confirmed_ - std::min<uint64_t>(confirmed_, history_bytes_), produced());
    // Erases the bytes only when the rest, which erase() must move, is the smaller part.
    if (needed <= base_ || needed - base_ < bytes_.size() / 2) return;
    bytes_.erase(0, static_cast<size_t>(needed - base_));
    base_ = needed;
  }

  size_t history_bytes_;
  std::string bytes_;  // from base_ to produced()
  uint64_t base_ = 0;
  uint64_t confirmed_ = 0;  // not above sent_
  uint64_t sent_ = 0;       // above produced(): the receiver has bytes that come again in put()
};

// The receiver's half. It only counts; the caller has the bytes.
class ReceivedStream {
 public:
  // `received`: the number of bytes that an earlier receiver has passed on.
  explicit ReceivedStream(uint64_t received = 0)
      : received_(received), passed_on_(received), confirmed_(received) {}

  uint64_t received() const { return received_; }
  uint64_t passed_on() const { return passed_on_; }
  // Returns the number of bytes that the caller has received and not passed on.
  uint64_t waiting() const { return received_ - passed_on_; }

  // Counts bytes that have arrived. Errors: EPROTO if they do not continue the stream.
  Status take(uint64_t position, size_t bytes) {
    if (position != received_) {
      return failure(EPROTO, "the command's peer does not continue its stream");
    }
    received_ += bytes;
    return {};
  }
  // Notes that the caller has passed on all bytes that it has received.
  void pass_on() { passed_on_ = received_; }

  // Returns the position to confirm now, or nullopt. Confirms each quarter of the sender's window:
  // before the sender has to stop, but not after each short line.
  std::optional<uint64_t> take_confirmation() {
    if (passed_on_ - confirmed_ < kStreamWindowBytes / 4) return std::nullopt;
    confirmed_ = passed_on_;
    return confirmed_;
  }

 private:
  uint64_t received_ = 0;
  uint64_t passed_on_ = 0;
  uint64_t confirmed_ = 0;
};

}  // namespace ppmr
