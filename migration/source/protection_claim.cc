#include "migration/source/protection_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

// Whether another process has locked the file. A file that is gone is not held.
Result<bool> is_held(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return false;
  if (!file) return system_failure("open", path);
  if (flock(file.get(), LOCK_SH | LOCK_NB) == 0) return false;
  if (errno != EWOULDBLOCK) return system_failure("lock", path);
  return true;
}

std::optional<ProtectionClaim> parse_claim(const std::string& text) {
  const json claim = parse_json(text);
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
    return system_failure("empty the lock file of ppmr protect", path);
  return lock;
}

Status claim_protection(const UniqueFd& lock, const ProtectionClaim& claim) {
  const std::string text = json_text({{"name", claim.name},
                                      {"pid", claim.root.pid},
                                      {"start_time", claim.root.start_time},
                                      {"protector", claim.protector}}) +
                           "\n";
  return write_all(lock, std::as_bytes(std::span(text)), 0,
                   "the lock file of ppmr protect --name " + claim.name);
}

Result<std::optional<ProtectionClaim>> find_protection(
    const std::vector<ProcessIdentity>& wanted,
    const std::function<std::vector<ProcessIdentity>(const ProcessIdentity& root)>& tasks_of,
    const std::string& directory) {
  const auto entries = list_directory(directory);
  if (!entries && entries.error().errno_value == ENOENT) return std::nullopt;
  if (!entries) return failure(entries.error());
  for (const auto& entry : *entries) {
    if (!is_claim_file(entry.path().filename())) continue;
    const auto held = is_held(entry.path());
    if (!held) return failure(held.error());
    if (!*held) continue;
    const auto text = read_whole_file(entry.path());
    if (!text && text.error().errno_value == ENOENT) continue;
    if (!text) return failure(text.error());
    auto claim = parse_claim(*text);
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
