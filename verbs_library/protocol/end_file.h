// The file of an end in the directory: the address of its process, and the present number of its
// queue pair. It is text, one `key value` per line.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "verbs_library/protocol/message.h"

namespace ppmr::verbs {

struct EndFile {
  ControlAddress control;
  Secret secret = {};
  bool moves = false;      // the process has released its devices, and does not answer now
  bool has_moved = false;  // real numbers differ from shown ones, so a peer must ask for the keys
  Gid gid = {};            // the real GID; zero: the end has not chosen one yet
  uint32_t qpn = 0;        // the real queue pair number

  bool operator==(const EndFile&) const = default;
};

std::string format(const EndFile& file);
// Returns nullopt if the text is not such a file.
std::optional<EndFile> parse_end_file(std::string_view text);

inline constexpr size_t kEndFileBytesMax = 1024;

}  // namespace ppmr::verbs
