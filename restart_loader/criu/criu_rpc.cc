#include "restart_loader/criu/criu_rpc.h"

#include <cstdint>

namespace ppmr {
namespace {

// Numbers of rpc.proto.
constexpr uint64_t kTypeDump = 1, kTypeRestore = 2, kTypePreDump = 4, kTypeNotify = 6;
constexpr uint32_t kRequestType = 1, kRequestOptions = 2, kRequestNotifySuccess = 3;
constexpr uint32_t kOptionsImagesDirectory = 1, kOptionsPid = 2, kOptionsNotifyScripts = 12;
constexpr uint32_t kOptionsWorkDirectory = 17, kOptionsExternal = 37;
constexpr uint32_t kOptionsConfigurationFile = 51, kOptionsNetworkLock = 64;
constexpr int64_t kNotGiven = -1;
constexpr uint32_t kResponseType = 1, kResponseSuccess = 2, kResponseNotify = 5;
constexpr uint32_t kNotifyScript = 1, kNotifyPid = 2;

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of kBytes
};

// Goes through the fields of one message.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  // False at the end, and where the message is damaged: see damaged().
  bool next(Field& field) {
    if (rest_.empty() || damaged_) return false;
    uint64_t tag = 0;
    damaged_ = !take_varint(tag);
    field.number = static_cast<uint32_t>(tag >> 3);
    field.type = static_cast<WireType>(tag & 7);
    switch (field.type) {
      case WireType::kVarint:
        damaged_ = damaged_ || !take_varint(field.value);
        break;
      case WireType::kFixed64:
        take_bytes(8);
        break;
      case WireType::kFixed32:
        take_bytes(4);
        break;
      case WireType::kBytes: {
        uint64_t size = 0;
        damaged_ = damaged_ || !take_varint(size);
        field.bytes = take_bytes(size);
        break;
      }
      default:
        damaged_ = true;
    }
    return !damaged_;
  }
  bool damaged() const { return damaged_; }

 private:
  bool take_varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  std::string_view take_bytes(uint64_t size) {
    if (damaged_ || size > rest_.size()) {
      damaged_ = true;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool damaged_ = false;
};

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, uint64_t{field} << 3 | static_cast<uint64_t>(WireType::kVarint));
  put_varint(out, value);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_varint(out, uint64_t{field} << 3 | static_cast<uint64_t>(WireType::kBytes));
  put_varint(out, bytes.size());
  out += bytes;
}

uint64_t type_number(CriuRequest type) {
  switch (type) {
    case CriuRequest::kPreDump:
      return kTypePreDump;
    case CriuRequest::kDump:
      return kTypeDump;
    case CriuRequest::kRestore:
      return kTypeRestore;
    case CriuRequest::kOther:
      break;
  }
  return 0;
}

CriuRequest request_of(uint64_t type_number) {
  if (type_number == kTypePreDump) return CriuRequest::kPreDump;
  if (type_number == kTypeDump) return CriuRequest::kDump;
  return type_number == kTypeRestore ? CriuRequest::kRestore : CriuRequest::kOther;
}

}  // namespace

std::string criu_request(CriuRequest type, pid_t root, const CriuSettings& settings,
                         const std::string& configuration_file) {
  std::string options;
  put_number(options, kOptionsImagesDirectory, static_cast<uint64_t>(kNotGiven));  // required
  if (type != CriuRequest::kRestore) put_number(options, kOptionsPid, static_cast<uint64_t>(root));
  if (type != CriuRequest::kPreDump) put_number(options, kOptionsNotifyScripts, 1);
  for (const std::string& external : settings.externals) {
    put_bytes(options, kOptionsExternal, external);
  }
  put_bytes(options, kOptionsConfigurationFile, configuration_file);
  // A restore takes it from the images.
  if (settings.network_lock != 0 && type == CriuRequest::kDump) {
    put_number(options, kOptionsNetworkLock, settings.network_lock);
  }
  std::string message;
  put_number(message, kRequestType, type_number(type));
  put_bytes(message, kRequestOptions, options);
  return message;
}

std::optional<CriuRequestFields> parse_criu_request(std::string_view message) {
  CriuRequestFields request;
  bool has_type = false;
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == kRequestType && field.type == WireType::kVarint) {
      has_type = true;
      request.type = request_of(field.value);
    } else if (field.number == kRequestOptions && field.type == WireType::kBytes) {
      Fields options(field.bytes);
      for (Field option; options.next(option);) {
        if (option.type != WireType::kVarint) continue;
        const int number = static_cast<int>(option.value);
        if (option.number == kOptionsImagesDirectory) request.images_directory = number;
        if (option.number == kOptionsWorkDirectory) request.work_directory = number;
      }
      if (options.damaged()) return std::nullopt;
    }
  }
  if (fields.damaged() || !has_type) return std::nullopt;
  return request;
}

// A field that comes again replaces the one before, and parts of a message that comes again are
// merged: so it is enough to append.
std::string with_directories(std::string message, int images_directory, int work_directory) {
  std::string options;
  // Required by rpc.proto in each part.
  put_number(options, kOptionsImagesDirectory, static_cast<uint64_t>(images_directory));
  if (work_directory >= 0) {
    put_number(options, kOptionsWorkDirectory, static_cast<uint64_t>(work_directory));
  }
  put_bytes(message, kRequestOptions, options);
  return message;
}

std::optional<CriuNotification> parse_criu_notification(std::string_view message) {
  CriuNotification notification;
  uint64_t type = 0;
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == kResponseType && field.type == WireType::kVarint) type = field.value;
    if (field.number != kResponseNotify || field.type != WireType::kBytes) continue;
    Fields inner(field.bytes);
    for (Field part; inner.next(part);) {
      if (part.number == kNotifyScript && part.type == WireType::kBytes) {
        notification.script = part.bytes;
      } else if (part.number == kNotifyPid && part.type == WireType::kVarint) {
        notification.pid = static_cast<pid_t>(part.value);
      }
    }
    if (inner.damaged()) return std::nullopt;
  }
  if (fields.damaged() || type != kTypeNotify) return std::nullopt;
  return notification;
}

bool has_succeeded(std::string_view response) {
  bool success = false;
  Fields fields(response);
  for (Field field; fields.next(field);) {
    if (field.number == kResponseSuccess && field.type == WireType::kVarint) {
      success = field.value != 0;
    }
  }
  return success && !fields.damaged();
}

std::string criu_notification_answer(bool go_on) {
  std::string message;
  put_number(message, kRequestType, kTypeNotify);
  put_number(message, kRequestNotifySuccess, go_on ? 1 : 0);
  return message;
}

}  // namespace ppmr
