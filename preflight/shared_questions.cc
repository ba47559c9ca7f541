#include "preflight/shared_questions.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace ppmr {
namespace {

// Returns the fields that the target compares. Trees that use a file in different ways may know
// different fields of it, for example its digest. Then there are two questions about the file.
auto compared(const FileFact& file) {
  return std::tie(file.path, file.type, file.filesystem, file.size_bytes, file.mode, file.inode,
                  file.filesystem_id, file.digest, file.build_id, file.modified_ns);
}

struct ByWhatIsCompared {
  bool operator()(const FileFact* a, const FileFact* b) const {
    return compared(*a) < compared(*b);
  }
};

auto key_of(const ListenerQuestion& listener) {
  return std::tie(listener.protocol, listener.address, listener.port);
}

template <typename Item>
std::vector<Item> those_in(const std::vector<Item>& found, const std::vector<Item>& own) {
  const std::set<Item> wanted(own.begin(), own.end());
  std::vector<Item> result;
  for (const Item& item : found) {
    if (wanted.contains(item)) result.push_back(item);
  }
  return result;
}

}  // namespace

SharedQuestions::SharedQuestions(std::vector<PreflightQuestions> each) : each_(std::move(each)) {
  all_.boot_id = each_.front().boot_id;
  all_.processor = each_.front().processor;
  std::set<pid_t> pids;
  std::set<std::string> addresses;
  std::map<const FileFact*, size_t, ByWhatIsCompared> places;
  for (const PreflightQuestions& own : each_) {
    all_.processes.insert(all_.processes.end(), own.processes.begin(), own.processes.end());
    pids.insert(own.pids.begin(), own.pids.end());
    addresses.insert(own.addresses.begin(), own.addresses.end());
    all_.listeners.insert(all_.listeners.end(), own.listeners.begin(), own.listeners.end());
    first_container_.push_back(all_.containers.size());
    all_.containers.insert(all_.containers.end(), own.containers.begin(), own.containers.end());
    files_.emplace_back();
    for (const FileFact& file : own.files) {
      const auto [place, is_new] = places.emplace(&file, all_.files.size());
      if (is_new) all_.files.push_back(file);
      files_.back().push_back(place->second);
    }
  }
  all_.pids.assign(pids.begin(), pids.end());
  all_.addresses.assign(addresses.begin(), addresses.end());
}

PreflightAnswers SharedQuestions::answers_for(size_t tree, const PreflightAnswers& answers) const {
  const PreflightQuestions& own = each_[tree];
  PreflightAnswers result;
  result.node = answers.node;
  result.policy_problem = answers.policy_problem;
  result.processor_problem = answers.processor_problem;
  result.drained_mount = answers.drained_mount;
  result.pids_taken = those_in(answers.pids_taken, own.pids);
  result.addresses_missing = those_in(answers.addresses_missing, own.addresses);
  for (const size_t place : files_[tree]) result.files.push_back(answers.files[place]);
  for (const ListenerQuestion& taken : answers.listeners_taken) {
    const bool is_own =
        std::any_of(own.listeners.begin(), own.listeners.end(),
                    [&](const ListenerQuestion& asked) { return key_of(asked) == key_of(taken); });
    if (is_own) result.listeners_taken.push_back(taken);
  }
  const auto first = answers.containers.begin() + static_cast<ptrdiff_t>(first_container_[tree]);
  result.containers.assign(first, first + static_cast<ptrdiff_t>(own.containers.size()));
  return result;
}

}  // namespace ppmr
