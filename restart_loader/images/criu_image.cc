#include "restart_loader/images/criu_image.h"

#include <fmt/format.h>

#include <climits>
#include <cstring>
#include <fstream>

namespace ppmr {
namespace {

// See criu/include/magic.h.
constexpr uint32_t kImageMagic = 0x54564319;
constexpr uint32_t kInventoryMagic = 0x58313116;

}  // namespace

Result<ImageReader> ImageReader::of(std::string path, std::string bytes, uint32_t magic) {
  ImageReader image(std::move(path), std::move(bytes));
  if (image.number() != kImageMagic || image.number() != magic) {
    return image.damaged("wrong magic number");
  }
  return image;
}

Result<ImageReader> ImageReader::of_inventory(std::string path, std::string bytes) {
  ImageReader image(std::move(path), std::move(bytes));
  if (image.number() != kInventoryMagic) return image.damaged("wrong magic number");
  return image;
}

uint32_t ImageReader::number() {
  uint32_t value = 0;
  const size_t length = std::min(sizeof(value), bytes_.size() - at_);
  std::memcpy(&value, bytes_.data() + at_, length);
  at_ += length;
  return length == sizeof(value) ? value : 0;
}

Status ImageReader::read(google::protobuf::MessageLite& message) {
  if (at_end()) return damaged("a message is missing");
  const size_t length = number();
  if (length > bytes_.size() - at_ || length > INT_MAX) return damaged("a message is cut off");
  // A peer may send messages that lack a field. ParseFromArray() would print a line for each of
  // them.
  if (!message.ParsePartialFromArray(bytes_.data() + at_, static_cast<int>(length)) ||
      !message.IsInitialized()) {
    return damaged("a message cannot be parsed");
  }
  at_ += length;
  return {};
}

// Parsing and writing removes each field that is there twice or is longer than needed. It keeps
// everything else, also unknown fields, so the result is never longer.
Status ImageReader::read_exactly(google::protobuf::MessageLite& message) {
  const size_t before = at_;
  if (Status parsed = read(message); !parsed) return parsed;
  if (message.ByteSizeLong() + sizeof(uint32_t) != at_ - before) {
    return damaged("a message is not as CRIU writes it");
  }
  return {};
}

Status ImageReader::skip(size_t length_bytes) {
  if (length_bytes > bytes_.size() - at_) return damaged("data is cut off");
  at_ += length_bytes;
  return {};
}

tl::unexpected<Error> ImageReader::damaged(const std::string& what) const {
  return failure(EPROTO, fmt::format("{}: not an image that CRIU has written: {}", path_, what));
}

ImageWriter::ImageWriter(uint32_t magic) {
  add(kImageMagic);
  add(magic);
}

void ImageWriter::add(uint32_t number) {
  bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void ImageWriter::add(const google::protobuf::MessageLite& message) {
  add(static_cast<uint32_t>(message.ByteSizeLong()));
  message.AppendToString(&bytes_);
}

Status ImageWriter::write(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  file << bytes_ << std::flush;
  return file ? Status() : system_failure("write", path);
}

}  // namespace ppmr
