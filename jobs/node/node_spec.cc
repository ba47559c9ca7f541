#include "jobs/node/node_spec.h"

#include <arpa/inet.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;

constexpr size_t kJobIdLength = 8;
constexpr size_t kHostNameMax = 64;  // the same as HOST_NAME_MAX
constexpr size_t kAllocationMax = 20;

bool is_address(const std::string& text) {
  in_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1;
}

// Returns whether the text consists of lines "ADDRESS NAME".
bool are_hosts(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) return false;
    const size_t space = std::min(text.find(' ', at), end);
    if (!is_address(text.substr(at, space - at)) || space == end ||
        !is_host_name(text.substr(space + 1, end - space - 1))) {
      return false;
    }
    at = end + 1;
  }
  return true;
}

bool is_hexadecimal(const std::string& text) {
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

bool is_host_name(const std::string& text) {
  return !text.empty() && text.size() <= kHostNameMax && text[0] != '-' && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

bool is_job_id(const std::string& text) {
  return text.size() == kJobIdLength && is_hexadecimal(text);
}

bool is_allocation(const std::string& text) {
  return !text.empty() && text.size() <= kAllocationMax &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_job_container(const std::string& text) {
  constexpr std::string_view kPrefix = "ppmr-";
  const size_t dash = kPrefix.size() + kJobIdLength;
  return text.starts_with(kPrefix) && text.size() > dash + 1 && text[dash] == '-' &&
         is_job_id(text.substr(kPrefix.size(), kJobIdLength)) &&
         text.find_first_not_of("0123456789", dash + 1) == std::string::npos;
}

std::string container_name(const std::string& job, unsigned index) {
  return "ppmr-" + job + "-" + std::to_string(index);
}

std::string NodeSpec::container() const { return container_name(job, index); }

size_t NodeSpec::node_count() const {
  return static_cast<size_t>(std::count(hosts.begin(), hosts.end(), '\n'));
}

json to_json(const NodeSpec& spec) {
  return {{"job", spec.job},
          {"index", spec.index},
          {"name", spec.name},
          {"address", spec.address},
          {"home", spec.home},
          {"token", spec.token},
          {"uid", spec.user.uid},
          {"gid", spec.user.gid},
          {"groups", spec.user.groups},
          {"allocation", spec.allocation},
          {"hosts", spec.hosts},
          {"rdma", spec.rdma}};
}

Result<NodeSpec> parse_node_spec(const json& json) {
  NodeSpec spec;
  try {
    spec.job = json.at("job");
    spec.index = json.at("index");
    spec.name = json.at("name");
    spec.address = json.at("address");
    spec.home = json.at("home");
    spec.token = json.at("token");
    spec.user = {.uid = json.at("uid"), .gid = json.at("gid"), .groups = json.at("groups")};
    spec.allocation = json.at("allocation");
    spec.hosts = json.at("hosts");
    spec.rdma = json.value("rdma", false);
  } catch (const nlohmann::json::exception& error) {
    return failure(EPROTO, std::string("malformed job node: ") + error.what());
  }
  const std::pair<const char*, bool> checks[] = {
      {"job", is_job_id(spec.job)},
      {"name", is_host_name(spec.name)},
      {"address", is_address(spec.address)},
      {"home", is_host_name(spec.home)},
      {"token", !spec.token.empty() && is_hexadecimal(spec.token)},
      {"allocation", spec.allocation.empty() || is_allocation(spec.allocation)},
      {"hosts", are_hosts(spec.hosts)}};
  for (const auto& [field, is_valid] : checks) {
    if (!is_valid)
      return failure(EPROTO, std::string("malformed job node: ") + field + " is not valid");
  }
  return spec;
}

}  // namespace ppmr
