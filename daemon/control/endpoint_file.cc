#include "daemon/control/endpoint_file.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_json.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

std::string path_of(const std::string& control_socket) { return control_socket + ".endpoint"; }

}  // namespace

Status write_endpoint(const std::string& control_socket, const nlohmann::json& endpoint) {
  return write_whole_file(path_of(control_socket), json_text(endpoint), O_EXCL, 0600);
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
