// A connection whose peer sends the bytes of a fuzz input and then closes it. The bytes written to
// it are dropped.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

class InputConnection final : public Connection {
 public:
  explicit InputConnection(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  Status read(std::span<iovec> buffers, size_t& received_bytes) override {
    received_bytes = 0;
    for (const iovec& buffer : buffers) {
      const size_t count = take({static_cast<std::byte*>(buffer.iov_base), buffer.iov_len});
      received_bytes += count;
      if (count < buffer.iov_len) return closed();
    }
    return {};
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override {
    const size_t count = take(bytes);
    if (count == 0) return failure(closed().error());
    return count;
  }
  Result<std::byte> peek() override {
    if (at_ == bytes_.size()) return failure(closed().error());
    return bytes_[at_];
  }
  Status write(std::span<iovec>) override { return {}; }
  void set_read_timeout(std::chrono::milliseconds) override {}
  void set_write_timeout(std::chrono::milliseconds) override {}
  void shut_down() override {}
  const std::string& peer() const override { return peer_; }
  using Connection::read;
  using Connection::write;

 private:
  size_t take(std::span<std::byte> bytes) {
    const size_t count = std::min(bytes.size(), bytes_.size() - at_);
    if (count > 0) std::memcpy(bytes.data(), bytes_.data() + at_, count);
    at_ += count;
    return count;
  }
  static Status closed() { return failure(ECONNRESET, "the input ends"); }

  const std::vector<std::byte> bytes_;
  size_t at_ = 0;
  const std::string peer_ = "the fuzzer";
};

}  // namespace ppmr
