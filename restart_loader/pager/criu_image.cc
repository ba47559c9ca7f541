#include "restart_loader/pager/criu_image.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>

namespace ppmr {
namespace {

constexpr uint32_t kImageMagic = 0x54564319;  // criu/include/magic.h

}  // namespace

Result<ImageReader> ImageReader::of(std::string path, std::string bytes, uint32_t magic) {
  ImageReader image(std::move(path), std::move(bytes));
  if (image.number() != kImageMagic || image.number() != magic) {
    return image.damaged("wrong magic number");
  }
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
  if (length > bytes_.size() - at_) return damaged("a message is cut off");
  if (!message.ParseFromArray(bytes_.data() + at_, static_cast<int>(length))) {
    return damaged("a message cannot be parsed");
  }
  at_ += length;
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
