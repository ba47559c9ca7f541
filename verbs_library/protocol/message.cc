#include "verbs_library/protocol/message.h"

#include <algorithm>

namespace ppmr::verbs {
namespace {

constexpr uint32_t kMagic = 0x70766231;  // "pvb1": the 1 is the version

class Writer {
 public:
  template <typename Number>
  void number(Number value) {
    for (int shift = (static_cast<int>(sizeof(Number)) - 1) * 8; shift >= 0; shift -= 8)
      bytes_.push_back(static_cast<uint8_t>(value >> shift));
  }
  void bytes(std::span<const uint8_t> data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  void end(const EndId& id) {
    bytes(id.gid);
    number(id.qpn);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

// Reads numbers from bytes. If bytes are missing for a number, is_good() is false from then on, and
// all numbers are 0.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> data) : left_(data) {}

  template <typename Number>
  Number number() {
    if (!has(sizeof(Number))) return 0;
    Number value = 0;
    for (size_t i = 0; i < sizeof(Number); ++i)
      value = static_cast<Number>((value << 8) | left_[i]);
    left_ = left_.subspan(sizeof(Number));
    return value;
  }
  void bytes(std::span<uint8_t> data) {
    if (!has(data.size())) return;
    std::copy_n(left_.begin(), data.size(), data.begin());
    left_ = left_.subspan(data.size());
  }
  EndId end() {
    EndId id;
    bytes(id.gid);
    id.qpn = number<uint32_t>();
    return id;
  }
  bool has(size_t count) {
    if (left_.size() < count) good_ = false;
    return good_;
  }
  bool is_good() const { return good_; }
  bool is_at_end() const { return good_ && left_.empty(); }

 private:
  std::span<const uint8_t> left_;
  bool good_ = true;
};

bool is_known(const Message& message) {
  return message.kind >= 1 &&
         message.kind <= (message.is_reply ? static_cast<uint8_t>(ReplyKind::kKeys)
                                           : static_cast<uint8_t>(RequestKind::kHold));
}

}  // namespace

std::vector<uint8_t> encode(const Message& message) {
  Writer writer;
  writer.number<uint32_t>(0);  // the length; its value is set below
  writer.number(kMagic);
  writer.number<uint8_t>(message.is_reply);
  writer.number(message.kind);
  writer.end(message.from);
  writer.end(message.to);
  writer.bytes(message.secret);
  writer.number(message.serial);
  writer.number(message.sent);
  const QueuePairAddress& address = message.address;
  writer.bytes(address.gid);
  writer.number(address.qpn);
  writer.number(address.psn);
  writer.number(static_cast<uint8_t>(address.control.ip.size()));
  writer.bytes({reinterpret_cast<const uint8_t*>(address.control.ip.data()),
                static_cast<uint8_t>(address.control.ip.size())});
  writer.number(address.control.port);
  writer.number(static_cast<uint32_t>(address.keys.size()));
  for (const KeyPair& key : address.keys) {
    writer.number(key.shown);
    writer.number(key.real);
  }
  std::vector<uint8_t> frame = writer.take();
  const uint32_t length = static_cast<uint32_t>(frame.size() - kFrameHeaderBytes);
  for (size_t i = 0; i < kFrameHeaderBytes; ++i)
    frame[i] = static_cast<uint8_t>(length >> (8 * (kFrameHeaderBytes - 1 - i)));
  return frame;
}

std::optional<size_t> decode_length(std::span<const uint8_t, kFrameHeaderBytes> header) {
  Reader reader(header);
  const size_t length = reader.number<uint32_t>();
  if (length == 0 || length > kMessageBytesMax) return std::nullopt;
  return length;
}

std::optional<Message> decode(std::span<const uint8_t> body) {
  Reader reader(body);
  if (reader.number<uint32_t>() != kMagic) return std::nullopt;
  Message message;
  const uint8_t direction = reader.number<uint8_t>();
  message.is_reply = direction == 1;
  message.kind = reader.number<uint8_t>();
  message.from = reader.end();
  message.to = reader.end();
  reader.bytes(message.secret);
  message.serial = reader.number<uint64_t>();
  message.sent = reader.number<uint64_t>();
  QueuePairAddress& address = message.address;
  reader.bytes(address.gid);
  address.qpn = reader.number<uint32_t>();
  address.psn = reader.number<uint32_t>();
  address.control.ip.resize(reader.number<uint8_t>());
  reader.bytes({reinterpret_cast<uint8_t*>(address.control.ip.data()), address.control.ip.size()});
  address.control.port = reader.number<uint16_t>();
  const uint32_t keys = reader.number<uint32_t>();
  if (!reader.is_good() || keys > kKeysMax || !reader.has(size_t{keys} * 8)) return std::nullopt;
  address.keys.resize(keys);
  for (KeyPair& key : address.keys) {
    key.shown = reader.number<uint32_t>();
    key.real = reader.number<uint32_t>();
  }
  constexpr uint32_t k24Bits = 0xffffff;
  if (!reader.is_at_end() || direction > 1 || !is_known(message)) return std::nullopt;
  if (address.qpn > k24Bits || address.psn > k24Bits) return std::nullopt;
  return message;
}

}  // namespace ppmr::verbs
