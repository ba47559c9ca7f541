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

Status OpenMigrations::note(const request::NoteOpen& report) {
  std::vector<json> open;
  for (const auto& [id, state, since_ns] : report.migrations) {
    if (!is_word(id) || !is_word(state)) {
      return failure(EINVAL, "note the open migrations: an ID or a state is not a word");
    }
    open.push_back({{"id", id}, {"state", state}, {"since_ns", since_ns}});
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
