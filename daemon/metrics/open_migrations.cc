#include "daemon/metrics/open_migrations.h"

#include <algorithm>
#include <vector>

namespace ppmr {
namespace {

using nlohmann::json;

bool is_word(const std::string& text) {
  return !text.empty() && text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
    return ('a' <= c && c <= 'z') || ('0' <= c && c <= '9');
  });
}

}  // namespace

Status OpenMigrations::note(const json& report) {
  std::vector<json> open;
  try {
    for (const json& migration : report.at("migrations")) {
      const std::string id = migration.at("id"), state = migration.at("state");
      const int64_t since_ns = migration.at("since_ns");
      if (!is_word(id) || !is_word(state)) return failure(EINVAL, "invalid open migration");
      open.push_back({{"id", id}, {"state", state}, {"since_ns", since_ns}});
    }
  } catch (const json::exception& error) {
    return failure(EINVAL, std::string("invalid report of open migrations: ") + error.what());
  }
  std::sort(open.begin(), open.end(), [](const json& left, const json& right) {
    return left.at("since_ns").get<int64_t>() < right.at("since_ns").get<int64_t>();
  });
  json status = {{"count", open.size()},
                 {"oldest_ns", open.empty() ? json(0) : open.front().at("since_ns")}};
  open.resize(std::min(open.size(), kOpenMigrationsListed));
  status["migrations"] = std::move(open);
  MutexLock lock(mutex_);
  status_ = std::move(status);
  return {};
}

json OpenMigrations::status() const {
  MutexLock lock(mutex_);
  return status_;
}

}  // namespace ppmr
