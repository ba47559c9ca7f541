#include "jobs/agent/host_contacts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {

Contact contact_of(const Error& error) {
  switch (error.errno_value) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
      return Contact::kSilent;
    case ECONNREFUSED:
    case ECONNRESET:
    case ENODATA:
      return Contact::kAway;
    case kNoAddress:
      return Contact::kUnknown;
    default:  // the host has answered, with a refusal
      return Contact::kAnswers;
  }
}

Error refusal_of_host(Error error) {
  if (contact_of(error) != Contact::kAnswers) error.errno_value = EREMOTEIO;
  return error;
}

std::chrono::milliseconds patience_with(Contact contact, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kForSilent{1'500};
  return contact == Contact::kSilent ? std::min(patience, kForSilent) : patience;
}

bool is_surely_silent(const HostContact& contact, std::chrono::steady_clock::time_point now) {
  // A question takes at most 1.5 s, and the next one follows within 0.75 s.
  constexpr std::chrono::milliseconds kTwoQuestions{4'000};
  return contact.contact == Contact::kSilent && now - contact.since >= kTwoQuestions;
}

std::string explain_silence(const std::string& host, const Error& error,
                            std::chrono::seconds host_timeout) {
  if (contact_of(error) == Contact::kAway) {
    return fmt::format(
        "the job agent of host {} is away: {}; the host's job nodes run on, but "
        "cannot move: start ppmr job agent there, then evacuate the host again",
        host, error.message);
  }
  if (contact_of(error) == Contact::kUnknown) {
    return fmt::format(
        "host {} cannot be asked: {}; its job nodes stay there: when the name has an address, "
        "evacuate the host again",
        host, error.message);
  }
  return fmt::format(
      "host {} does not answer: {}; its job nodes cannot move. If only its network "
      "fails, mend that and evacuate the host again. If the host is dead, the "
      "memory of its nodes is lost: their jobs end {} s after the loss "
      "(--host-timeout), or at once when their ppmr job run is stopped. A spare "
      "that does not answer is not chosen.",
      host, error.message, host_timeout.count());
}

void HostContacts::note_answer(const std::string& host, Time now) {
  Entry& entry = entries_[host];
  if (entry.contact.contact != Contact::kAnswers) {
    entry.contact = {.contact = Contact::kAnswers, .since_ns = realtime_ns(), .since = now};
  }
  entry.asked_or_heard = entry.heard = now;
}

void HostContacts::note_failure(const std::string& host, const Error& error, Time asked_at) {
  Entry& entry = entries_[host];
  if (entry.heard > asked_at) return;
  entry.asked_or_heard = std::max(entry.asked_or_heard, asked_at);
  const Contact contact = contact_of(error);
  if (contact != entry.contact.contact) {
    entry.contact = {.contact = contact, .since_ns = realtime_ns(), .since = asked_at};
  }
  entry.contact.reason = contact == Contact::kAnswers ? "" : error.message;
}

HostContact HostContacts::of(const std::string& host) const {
  const auto found = entries_.find(host);
  return found != entries_.end() ? found->second.contact : HostContact{};
}

std::vector<std::string> HostContacts::due(const std::set<std::string>& hosts, Time now,
                                           std::chrono::milliseconds quiet, size_t count_max) {
  std::erase_if(entries_, [&](const auto& entry) { return !hosts.contains(entry.first); });
  std::vector<std::pair<Time, std::string>> found;
  for (const std::string& host : hosts) {
    // A host without an entry counts as just asked: the host of a new job has answered just now.
    const Entry& entry = entries_.try_emplace(host, Entry{.asked_or_heard = now}).first->second;
    if (now - entry.asked_or_heard >= quiet) found.emplace_back(entry.asked_or_heard, host);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(found.size(), count_max); ++i) names.push_back(found[i].second);
  return names;
}

}  // namespace ppmr
