#include "verbs_library/protocol/end_file.h"

#include <arpa/inet.h>

#include <charconv>
#include <map>
#include <span>

namespace ppmr::verbs {
namespace {

constexpr std::string_view kFirstLine = "ppmr-verbs 1";

std::string hexadecimal(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

template <typename Number>
bool read_number(std::string_view text, Number& number, int base = 10) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool read_bytes(std::string_view text, std::span<uint8_t> bytes) {
  if (text.size() != bytes.size() * 2) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!read_number(text.substr(i * 2, 2), bytes[i], 16)) return false;
  }
  return true;
}

bool is_address(const std::string& ip) {
  in6_addr six;
  in_addr four;
  return inet_pton(AF_INET, ip.c_str(), &four) == 1 || inet_pton(AF_INET6, ip.c_str(), &six) == 1;
}

}  // namespace

std::string format(const EndFile& file) {
  std::string text(kFirstLine);
  text += "\nip " + file.control.ip;
  text += "\nport " + std::to_string(file.control.port);
  text += "\nsecret " + hexadecimal(file.secret);
  text += "\nmoves " + std::to_string(file.moves);
  text += "\nmoved " + std::to_string(file.has_moved);
  text += "\ngid " + hexadecimal(file.gid);
  text += "\nqpn " + std::to_string(file.qpn);
  return text + "\n";
}

std::optional<EndFile> parse_end_file(std::string_view text) {
  if (text.size() > kEndFileBytesMax || !text.starts_with(kFirstLine)) return std::nullopt;
  std::map<std::string_view, std::string_view> values;
  text.remove_prefix(kFirstLine.size());
  if (!text.starts_with('\n') || !text.ends_with('\n')) return std::nullopt;
  text.remove_prefix(1);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    values[line.substr(0, space)] = line.substr(space + 1);
  }
  EndFile file;
  file.control.ip = std::string(values["ip"]);
  int moves = 0, moved = 0;
  if (!is_address(file.control.ip) || !read_number(values["port"], file.control.port) ||
      !read_bytes(values["secret"], file.secret) || !read_number(values["moves"], moves) ||
      !read_number(values["moved"], moved) || !read_bytes(values["gid"], file.gid) ||
      !read_number(values["qpn"], file.qpn) || file.qpn > 0xffffff)
    return std::nullopt;
  file.moves = moves != 0;
  file.has_moved = moved != 0;
  return file;
}

}  // namespace ppmr::verbs
