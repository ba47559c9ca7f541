// An image file of CRIU: two magic numbers, then messages, each behind its length.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace ppmr {

class ImageReader {
 public:
  // Opens an image. `path`: for messages. `magic`: the magic number of this kind of image, from
  // criu/include/magic.h. Errors: as damaged().
  static Result<ImageReader> of(std::string path, std::string bytes, uint32_t magic);
  // Opens inventory.img, the only image with one magic number.
  static Result<ImageReader> of_inventory(std::string path, std::string bytes);

  bool at_end() const { return at_ == bytes_.size(); }
  // Reads the next message. Errors: as damaged().
  Status read(google::protobuf::MessageLite& message);
  // Like read(), but refuses a message that two readers could understand differently: one that has
  // a field twice, or a number in more bytes than it needs. The fields that `message` declares must
  // not be signed, because negative numbers have two encodings.
  Status read_exactly(google::protobuf::MessageLite& message);
  // Skips raw data behind a message. Errors: as damaged().
  Status skip(size_t length_bytes);
  // Returns EPROTO with the file and the fault.
  tl::unexpected<Error> damaged(const std::string& what) const;

 private:
  ImageReader(std::string path, std::string bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}
  // Returns the next number, or 0 at the end of the file.
  uint32_t number();

  std::string path_;
  std::string bytes_;
  size_t at_ = 0;
};

class ImageWriter {
 public:
  explicit ImageWriter(uint32_t magic);
  void add(const google::protobuf::MessageLite& message);
  // Writes the image. Errors: of the file system.
  Status write(const std::string& path) const;

 private:
  void add(uint32_t number);
  std::string bytes_;
};

}  // namespace ppmr
