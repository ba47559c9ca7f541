#include "migration/source/protection_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_json.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "protect-";
constexpr std::string_view kSuffix = ".lock";

bool is_claim_file(const std::string& name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

bool is_held(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return file && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::optional<ProtectionClaim> read_claim(const std::string& path) {
  const auto text = read_whole_file(path);
  if (!text) return std::nullopt;
  const json claim = parse_json(*text);
  if (!claim.is_object()) return std::nullopt;
  try {
    return ProtectionClaim{.name = claim.at("name"),
                           .root = {claim.at("pid"), claim.at("start_time")},
                           .protector = claim.at("protector")};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

bool share_a_task(const std::vector<ProcessIdentity>& one,
                  const std::vector<ProcessIdentity>& other) {
  return std::find_first_of(one.begin(), one.end(), other.begin(), other.end()) != one.end();
}

}  // namespace

Result<UniqueFd> lock_protection(const std::string& name, const std::string& directory) {
  (void)mkdir(directory.c_str(), 0700);
  const std::string path = fmt::format("{}/{}{}{}", directory, kPrefix, name, kSuffix);
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return system_failure("open", path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_failure("lock", path);
    return failure(EBUSY, fmt::format("another ppmr protect has the name {}: end it, or choose "
                                      "another --name",
                                      name));
  }
  if (ftruncate(lock.get(), 0) != 0)
    return system_failure("empty the claim of ppmr protect in", path);
  return lock;
}

Status claim_protection(const UniqueFd& lock, const ProtectionClaim& claim) {
  const std::string text = json_text({{"name", claim.name},
                                      {"pid", claim.root.pid},
                                      {"start_time", claim.root.start_time},
                                      {"protector", claim.protector}}) +
                           "\n";
  const auto size = static_cast<ssize_t>(text.size());
  if (pwrite(lock.get(), text.data(), text.size(), 0) != size) {
    return system_failure("write the claim of ppmr protect on", claim.name);
  }
  return {};
}

std::optional<ProtectionClaim> find_protection(
    const std::vector<ProcessIdentity>& wanted,
    const std::function<std::vector<ProcessIdentity>(const ProcessIdentity& root)>& tasks_of,
    const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (!is_claim_file(entry.path().filename()) || !is_held(entry.path())) continue;
    auto claim = read_claim(entry.path());
    if (!claim) continue;
    std::vector<ProcessIdentity> protected_tasks = tasks_of(claim->root);
    protected_tasks.push_back(claim->root);
    if (share_a_task(protected_tasks, wanted)) return claim;
  }
  return std::nullopt;
}

std::string describe_protection(const ProtectionClaim& claim) {
  return fmt::format(
      "process {} is protected as {} by pid {} (ppmr protect), which follows what it writes; end "
      "the protection first (`kill {}`, or stop its service), remove its epoch at the partner "
      "(`ppmr takeover --discard {}` there), and protect the process again at the target",
      claim.root.pid, claim.name, claim.protector, claim.protector, claim.name);
}

}  // namespace ppmr
