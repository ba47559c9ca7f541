#include "rdma_stream/connection/secret_file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <span>

#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr size_t kSecretFileMaxBytes = 64 << 10;
constexpr size_t kPublicFileMaxBytes = 16 << 20;  // a revocation list can be long
constexpr size_t kKeyDigits = 2 * std::tuple_size_v<SharedKey>;
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::string_view kKeyIdLabel = "ppmr key id";
constexpr size_t kKeyIdBytes = 8;

std::string hexadecimal(std::span<const uint8_t> bytes) {
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 0xf];
  }
  return text;
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string octal(mode_t mode) {
  std::string text = "0";
  for (int shift = 6; shift >= 0; shift -= 3)
    text += static_cast<char>('0' + ((mode >> shift) & 7));
  return text;
}

Status check_owner_and_mode(const std::string& path, const struct stat& found, mode_t denied) {
  if (!S_ISREG(found.st_mode)) return failure(EPERM, path + ": not a regular file");
  if (found.st_uid != ::geteuid() && found.st_uid != 0) {
    return failure(EPERM, path + ": belongs to user " + std::to_string(found.st_uid) +
                              ", who could replace it: change its owner with chown");
  }
  if ((found.st_mode & denied) != 0) {
    return failure(EPERM, path + ": other users can access it (mode " +
                              octal(found.st_mode & 0777) + "): chmod " +
                              octal(found.st_mode & 0777 & ~denied) + " " + path +
                              "; create a new key if another user may have read this one");
  }
  return {};
}

Result<SharedKey> parse_key(std::string_view digits) {
  if (digits.size() != kKeyDigits) {
    return failure(EINVAL, "expected " + std::to_string(kKeyDigits) +
                               " hexadecimal digits, found " + std::to_string(digits.size()) +
                               " characters");
  }
  SharedKey key;
  for (size_t i = 0; i < key.size(); ++i) {
    const int high = digit_value(digits[2 * i]);
    const int low = digit_value(digits[2 * i + 1]);
    if (high < 0 || low < 0) {
      return failure(EINVAL, "contains other characters than hexadecimal digits");
    }
    key[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return key;
}

Result<std::vector<SharedKey>> parse_keys(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty()) return failure(EINVAL, "the file is empty");
  std::vector<SharedKey> keys;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    auto key = parse_key(text.substr(begin, end - begin));
    if (!key) return failure(key.error());
    keys.push_back(*key);
    begin = end + 1;
  }
  if (keys.size() > kKeysMax) {
    return failure(EINVAL, "it has " + std::to_string(keys.size()) + " keys: remove the oldest");
  }
  if (keys.size() == kKeysMax && keys[0] == keys[1]) {
    return failure(EINVAL, "its two keys are the same: remove one");
  }
  return keys;
}

Result<std::string> read_whole(const UniqueFd& file, const std::string& path, size_t bytes_max) {
  std::string text(bytes_max + 1, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("read", path);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  if (filled > bytes_max) return system_failure("read", path, EFBIG);
  text.resize(filled);
  return text;
}

}  // namespace

Result<std::string> read_secret_file(const std::string& path, mode_t denied, const OpenFile& open) {
  const auto file = open(path);
  if (!file) return failure(file.error());
  struct stat found {};
  if (::fstat(file->get(), &found) != 0) return system_failure("read the attributes of", path);
  if (auto checked = check_owner_and_mode(path, found, denied); !checked) {
    return failure(checked.error());
  }
  return read_whole(*file, path, kSecretFileMaxBytes);
}

Result<std::string> read_public_file(const std::string& path, const OpenFile& open) {
  const auto file = open(path);
  if (!file) return failure(file.error());
  return read_whole(*file, path, kPublicFileMaxBytes);
}

Result<std::vector<SharedKey>> read_key_file(const std::string& path, const OpenFile& open) {
  auto text = read_secret_file(path, S_IRWXG | S_IRWXO, open);
  if (!text && text.error().errno_value == ENOENT) {
    return failure(ENOENT, text.error().message + ": make it with `ppmr keygen " + path +
                               "` on one node, and copy it to the others (scp -p)");
  }
  if (!text) return failure(text.error());
  auto keys = parse_keys(*text);
  ::OPENSSL_cleanse(text->data(), text->size());
  if (keys) return keys;
  return failure(EINVAL, path + ": " + keys.error().message +
                             " (a key file has one key, or two during a rotation; create one with "
                             "`ppmr keygen`)");
}

Result<SharedKey> create_key_file(const std::string& path) {
  SharedKey key;
  for (size_t filled = 0; filled < key.size();) {
    const ssize_t count = ::getrandom(key.data() + filled, key.size() - filled, 0);
    if (count < 0 && errno != EINTR) return system_failure("create random bytes for", path);
    if (count > 0) filled += static_cast<size_t>(count);
  }
  std::string line = hexadecimal(key) + "\n";
  const Status written = write_whole_file(path, line, O_EXCL | O_SYNC, S_IRUSR | S_IWUSR);
  ::OPENSSL_cleanse(line.data(), line.size());
  if (written) return key;
  if (written.error().errno_value != EEXIST) return failure(written.error());
  return failure(EEXIST, "create " + path +
                             ": it exists already, and ppmr does not overwrite keys: "
                             "use that one, or move it away first");
}

SharedKey derive_key(const SharedKey& key, std::string_view label) {
  SharedKey derived{};
  unsigned int length = 0;
  [[maybe_unused]] const auto* made = ::HMAC(
      ::EVP_sha256(), key.data(), static_cast<int>(key.size()),
      reinterpret_cast<const unsigned char*>(label.data()), label.size(), derived.data(), &length);
  assert(made != nullptr && length == derived.size());
  return derived;
}

std::string key_id(const SharedKey& key) {
  const SharedKey derived = derive_key(key, kKeyIdLabel);
  return hexadecimal(std::span(derived).first(kKeyIdBytes));
}

}  // namespace ppmr
