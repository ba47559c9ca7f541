#include "daemon/control/endpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_json.h"
#include "base/unique_fd.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

std::string path_of(const std::string& control_socket) { return control_socket + ".endpoint"; }

}  // namespace

Status write_endpoint(const std::string& control_socket, const nlohmann::json& endpoint) {
  const std::string path = path_of(control_socket);
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) return system_failure("create", path);
  const std::string text = json_text(endpoint);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return system_failure("write", path);
  }
  return {};
}

Result<nlohmann::json> read_endpoint(const std::string& control_socket) {
  const std::string path = path_of(control_socket);
  auto text = read_whole_file(path);
  if (!text) return failure(text.error());
  nlohmann::json endpoint = parse_json(*text);
  if (!endpoint.is_object())
    return failure(EPROTO, path + ": not a JSON object: restart the daemon of the mount");
  return endpoint;
}

void remove_endpoint(const std::string& control_socket) {
  ::unlink(path_of(control_socket).c_str());
}

}  // namespace ppmr
