// What a home knows about the hosts of its jobs: which of them answer. It learns this from the
// questions of the hosts, and from the answers to its own questions. The knowledge is in memory
// only: a new agent asks the hosts again.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "jobs/agent/host_state.h"

namespace ppmr {

struct HostContact {
  Contact contact = Contact::kAnswers;
  int64_t since_ns = 0;  // begin of `contact`; Unix time, for people
  // Begin of `contact`, to measure time from: when the question was asked that was not answered, or
  // when the host answered again.
  std::chrono::steady_clock::time_point since{};
  std::string reason{};  // why the host does not answer
};

// Returns what the error of a request to a host shows about the host.
Contact contact_of(const Error& error);

// Returns the error of a request that the host has refused. The host may have asked a third host,
// and its refusal may have the number of an error of that contact. contact_of() would apply this
// number to the host that refused, so the number becomes EREMOTEIO.
Error refusal_of_host(Error error);

// Returns how long the home waits for the answer of a host to a short question: `patience`, but
// less for a host that is silent, because all nodes of the job may stand still meanwhile. Two tries
// to connect fit: TCP repeats a lost packet after a second.
std::chrono::milliseconds patience_with(Contact contact, std::chrono::milliseconds patience);

// Returns whether the host has left two questions of HomeJobs::watch_hosts() unanswered. Then a
// rollback need not ask it again before it asks the fence.
bool is_surely_silent(const HostContact& contact, std::chrono::steady_clock::time_point now);

// Returns the error message for an operator who evacuates a host that does not answer, with what
// the operator can do.
std::string explain_silence(const std::string& host, const Error& error,
                            std::chrono::seconds host_timeout);

// Threads: one at a time.
class HostContacts {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Notes that the host has answered, or asked.
  void note_answer(const std::string& host, Time now);
  // Notes that a question to the host has failed. Does nothing if the host has been in contact
  // since `asked_at`.
  void note_failure(const std::string& host, const Error& error, Time asked_at);
  // Returns the contact of a host. A host that was never asked counts as answering.
  HostContact of(const std::string& host) const;
  // Returns the hosts that the home should ask now: up to `count_max` of `hosts`, which have been
  // without contact for `quiet`, the longest first. Forgets hosts that are not in `hosts`.
  std::vector<std::string> due(const std::set<std::string>& hosts, Time now,
                               std::chrono::milliseconds quiet, size_t count_max);

 private:
  struct Entry {
    HostContact contact{};
    Time asked_or_heard{};
    Time heard{};
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace ppmr
