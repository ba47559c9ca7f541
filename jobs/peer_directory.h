// The directory of a job with RDMA, in which the libraries of its processes find each other after a
// move (verbs_library). It has names, each with a small text. A process of the job's first node
// serves the directory from memory. It moves with that node, whose address stays the same.
//
// A connection has one request: the client sends the request, shuts its half of the connection
// down, and reads the reply until the end.
//
//   request   TOKEN OP NAME '\n' TEXT      OP: c, w, r, g
//   reply     CODE TEXT                    CODE: k, t, n, e
//
// This file uses only the standard library, because verbs_library runs in other people's programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ppmr {

// The port on the address of the first node.
inline constexpr uint16_t kPeerDirectoryPort = 7475;
// PPMR_VERBS_DIRECTORY=job:ADDRESS:PORT names this directory. Without the prefix, the variable has
// a path in the file system.
inline constexpr const char* kPeerDirectoryPrefix = "job:";

enum class DirectoryOp : char {
  kCreate = 'c',  // creates the name if it is free
  kWrite = 'w',   // replaces the text if the name exists
  kRemove = 'r',
  kGet = 'g',
};

enum class DirectoryCode : char {
  kDone = 'k',
  kTaken = 't',    // to kCreate: the name exists
  kNone = 'n',     // to kGet: the name does not exist
  kRefused = 'e',  // malformed, a wrong token, or the directory is full
};

struct DirectoryRequest {
  std::string token;
  DirectoryOp op = DirectoryOp::kGet;
  std::string name;
  std::string text{};
};

struct DirectoryReply {
  DirectoryCode code = DirectoryCode::kRefused;
  std::string text{};
};

inline constexpr size_t kDirectoryNameMax = 128;
inline constexpr size_t kDirectoryTextMax = 1024;
inline constexpr size_t kDirectoryTokenMax = 64;
inline constexpr size_t kDirectoryRequestMax =
    kDirectoryTokenMax + kDirectoryNameMax + kDirectoryTextMax + 4;

inline std::string to_text(const DirectoryRequest& request) {
  return request.token + ' ' + static_cast<char>(request.op) + ' ' + request.name + '\n' +
         request.text;
}

inline std::string to_text(const DirectoryReply& reply) {
  return static_cast<char>(reply.code) + reply.text;
}

// Returns nullopt if the text is not such a request.
inline std::optional<DirectoryRequest> parse_directory_request(std::string_view text) {
  const size_t end = text.find('\n');
  const size_t space = text.find(' ');
  if (text.size() > kDirectoryRequestMax || end == std::string_view::npos || space > end)
    return std::nullopt;
  DirectoryRequest request;
  request.token = text.substr(0, space);
  const std::string_view rest = text.substr(space + 1, end - space - 1);
  if (rest.size() < 3 || rest[1] != ' ') return std::nullopt;
  if (std::string_view("cwrg").find(rest[0]) == std::string_view::npos) return std::nullopt;
  request.op = static_cast<DirectoryOp>(rest[0]);
  request.name = rest.substr(2);
  request.text = text.substr(end + 1);
  if (request.token.empty() || request.token.size() > kDirectoryTokenMax ||
      request.name.size() > kDirectoryNameMax || request.text.size() > kDirectoryTextMax)
    return std::nullopt;
  return request;
}

// Returns nullopt if the text is not such a reply.
inline std::optional<DirectoryReply> parse_directory_reply(std::string_view text) {
  if (text.empty() || text.size() > kDirectoryTextMax + 1) return std::nullopt;
  if (std::string_view("ktne").find(text[0]) == std::string_view::npos) return std::nullopt;
  return DirectoryReply{static_cast<DirectoryCode>(text[0]), std::string(text.substr(1))};
}

}  // namespace ppmr
