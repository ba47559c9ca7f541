#include "jobs/cli/operator_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/json_text.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/command_line/table.h"
#include "daemon/control/control_client.h"
#include "jobs/agent/job_record.h"
#include "jobs/agent/requests.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// A move has no time limit, so this is longer than any move. If the agent ends, the call fails at
// once.
constexpr std::chrono::hours kEvacuateTimeout{24 * 8};
// This must be long enough for the hosts to write the memory of all nodes.
constexpr std::chrono::hours kSuspendTimeout{24};
constexpr std::chrono::milliseconds kCancelTimeout{80'000};
constexpr std::chrono::milliseconds kReturnTimeout{80'000};
constexpr std::chrono::milliseconds kStatusTimeout{30'000};
constexpr std::chrono::seconds kBetweenAttempts{1};
constexpr std::chrono::seconds kWatchInterval{1};

// Describes a move. `move`: from an answer of the agent, or from the job's record.
std::string describe(const std::string& node, const json& move) {
  const std::string error = move.value("error", "");
  if (!error.empty()) return fmt::format("{} stays on {}: {}", node, move.value("from", ""), error);
  const double downtime_s = move.value("downtime_s", -1.0);
  return fmt::format("{} moved from {} to {}{}", node, move.value("from", ""), move.value("to", ""),
                     downtime_s < 0 ? "" : fmt::format(" ({:.2f} s down)", downtime_s));
}

// Prints the result of an evacuation as text.
void print_evacuation(const json& evacuation) {
  const std::string host = evacuation.value("host", "");
  for (const json& move : evacuation.at("moves")) {
    const std::string node =
        fmt::format("node {} of job {}", move.value("node", ""), move.value("job", ""));
    print_to(stdout, "{}\n", describe(node, move));
  }
  print_to(stdout, "host {} {}takes no job nodes until: ppmr job return {}\n", host,
           evacuation.at("moves").empty() ? "has no job nodes that you may move, and " : "", host);
}

// Returns whether a node stayed only because there was no spare for it, or because it was not ready
// to move yet.
bool may_move_later(const json& answer) {
  for (const json& move : answer.value("moves", json::array())) {
    const int error = move.value("errno", 0);
    if (error == ENOSPC || error == EAGAIN) return true;
  }
  return false;
}

// Returns how long ago `since_ns` was, by the clock of the job's home. The clock of this host may
// differ from that clock.
std::string age_of(int64_t since_ns, const json& job) {
  const int64_t now_ns = job.value("now_ns", unix_time_ns());
  return format_time(std::chrono::microseconds(std::max<int64_t>(0, now_ns - since_ns) / 1000));
}

// Returns the message for a request to the job agent that has failed.
std::string explain(const Error& error, const std::string& socket) {
  const bool is_absent = error.errno_value == ENOENT || error.errno_value == ECONNREFUSED;
  if (!is_absent) return error.message;
  return fmt::format(
      "{}: no job agent of this host listens there: start `ppmr job agent`, or name "
      "the socket of one that runs instead of {}",
      error.message, socket);
}

// Returns how often an epoch begins, and why so often: "; one each 6 min 34 s, for this pause and 4
// hosts, each of which fails once in 720 h 0 min".
std::string interval_text(const json& protection, const json& job) {
  using std::chrono::milliseconds;
  const milliseconds every{protection.value("every_ms", int64_t{0})};
  const milliseconds mtbf{protection.value("mtbf_ms", int64_t{0})};
  if (every.count() == 0) return "";
  std::string text = "; one each " + format_time(every);
  if (mtbf.count() == 0 || protection.value("agreed", uint64_t{0}) == 0) return text;
  std::set<std::string> hosts;
  for (const json& node : job.at("nodes")) hosts.insert(node.value("host", ""));
  return text + fmt::format(", for this pause and {}, each of which fails once in {}",
                            hosts.size() == 1 ? "1 host" : fmt::format("{} hosts", hosts.size()),
                            format_time(mtbf));
}

std::string describe_protection(const json& protection, const json& job) {
  const auto agreed = protection.value("agreed", uint64_t{0});
  const auto rollbacks = protection.value("rollbacks", 0u);
  const std::string reason = protection.value("rolling_back", "");
  std::string text = "protected: no epoch yet";
  if (agreed > 0) {
    text = fmt::format("epoch {} is {} old: {}, pause {} ms", agreed,
                       age_of(protection.value("agreed_ns", int64_t{0}), job),
                       format_size(protection.value("bytes", uint64_t{0})),
                       protection.value("pause_ms", int64_t{0}));
  }
  text += interval_text(protection, job);
  if (rollbacks > 0)
    text += fmt::format("; rolled back {}",
                        rollbacks == 1 ? "once" : fmt::format("{} times", rollbacks));
  if (!reason.empty()) text += fmt::format("; rolling back: {}", reason);
  return text;
}

void print_job(const json& job) {
  const std::string allocation = job.value("allocation", "");
  print_to(stdout, "job {} of user {}{}\n", job.value("job", ""), job.value("uid", 0),
           allocation.empty() ? "" : ", job " + allocation + " of Slurm");
  Table hosts({{.title = "HOST"},
               {.title = "STATE", .is_whole = true},
               {.title = "SINCE", .is_number = true},
               {.title = "NODES"}},
              2);
  for (const json& host : job.at("hosts")) {
    std::string nodes;
    for (const json& node : job.at("nodes")) {
      if (node.at("host") != host.at("name")) continue;
      const std::string to = node.value("moving_to", "");
      nodes +=
          fmt::format("{}{} ({}){}", nodes.empty() ? "" : ", ", node.at("name").get<std::string>(),
                      node.at("address").get<std::string>(), to.empty() ? "" : " to " + to);
    }
    const std::string reason = host.value("reason", "");
    if (!reason.empty()) nodes += fmt::format("{}({})", nodes.empty() ? "" : " ", reason);
    hosts.add({host.value("name", ""), host.value("state", ""),
               age_of(host.value("since_ns", int64_t{0}), job), nodes});
  }
  print_to(stdout, "{}", hosts.text(columns_of_output(stdout)));
  if (const auto found = job.find("protection"); found != job.end()) {
    print_to(stdout, "  {}\n", describe_protection(*found, job));
  }
  for (const json& node : job.at("nodes")) {
    for (const json& move : node.at("moves")) {
      print_to(stdout, "  {} ago: {}\n", age_of(move.value("ended_ns", int64_t{0}), job),
               describe(node.value("name", ""), move));
    }
  }
}

}  // namespace

int JobEvacuateCommand::run_cancel() const {
  const auto answer = call(socket, to_request(user_request::Cancel{{host}}), kCancelTimeout);
  if (!answer) {
    return report("job evacuate", {ExitCode::kDaemonSilent, explain(answer.error(), socket)}, json);
  }
  if (Status status = accepted(*answer); !status) {
    return report("job evacuate", {ExitCode::kFailure, status.error().message}, json);
  }
  const auto& cancelled = answer->at("cancelled");
  if (json) {
    print_whole(stdout, "{}\n", json_text(cancelled));
  } else {
    for (const auto& move : cancelled.at("moves")) {
      const std::string error = move.value("error", "");
      print_to(
          stdout, "node {} of job {} {}\n", move.value("node", ""), move.value("job", ""),
          error.empty() ? "stays: its move is cancelled" : "is not stopped in its move: " + error);
    }
    if (cancelled.at("moves").empty()) {
      print_to(stdout, "no job node that you may move leaves host {}\n", host);
    }
  }
  return to_int(cancelled.value("ok", false) ? ExitCode::kSuccess : ExitCode::kFailure);
}

int JobEvacuateCommand::run() const {
  if (cancel) return run_cancel();
  const auto deadline = Clock::now() + wait;
  auto moved = nlohmann::json::array();  // the successful moves of earlier attempts
  for (;;) {
    auto answer =
        call(socket, to_request(user_request::Evacuate{host, to, limits}), kEvacuateTimeout);
    if (!answer) {
      return report("job evacuate", {ExitCode::kDaemonSilent, explain(answer.error(), socket)},
                    json);
    }
    if (Status status = accepted(*answer); !status) {
      return report("job evacuate", {ExitCode::kFailure, status.error().message}, json);
    }
    auto& evacuation = answer->at("evacuation");
    auto& moves = evacuation.at("moves");
    const bool all = evacuation.value("ok", false);
    if (!all && may_move_later(evacuation) && Clock::now() + kBetweenAttempts < deadline) {
      for (const auto& move : moves) {
        if (move.value("ok", false)) moved.push_back(move);
      }
      std::this_thread::sleep_for(kBetweenAttempts);
      continue;
    }
    moves.insert(moves.begin(), moved.begin(), moved.end());
    if (json) {
      print_whole(stdout, "{}\n", json_text(evacuation));
    } else {
      print_evacuation(evacuation);
    }
    return to_int(all ? ExitCode::kSuccess : ExitCode::kMigrationAborted);
  }
}

int JobSuspendCommand::run() const {
  const std::string place = std::filesystem::absolute(directory).lexically_normal().string();
  const char* const allocation = std::getenv("SLURM_JOB_ID");
  const auto answer = call(
      socket,
      to_request(user_request::Suspend{
          .job = job, .allocation = allocation != nullptr ? allocation : "", .directory = place}),
      kSuspendTimeout);
  if (!answer) {
    return report("job suspend", {ExitCode::kDaemonSilent, answer.error().message}, json);
  }
  if (Status status = accepted(*answer); !status) {
    return report("job suspend", {ExitCode::kFailure, status.error().message}, json);
  }
  if (json) {
    print_whole(stdout, "{}\n", json_text(*answer));
  } else {
    print_to(stdout, "job {} is suspended in {}: {} in {}; it goes on with: ppmr job resume {}\n",
             answer->value("job", ""), place, format_size(answer->value("bytes", uint64_t{0})),
             format_time(std::chrono::milliseconds(answer->value("took_ms", int64_t{0}))), place);
  }
  return to_int(ExitCode::kSuccess);
}

int JobReturnCommand::run() const {
  const auto answer = call(socket, to_request(user_request::Return{{host}}), kReturnTimeout);
  if (!answer) {
    return report("job return", {ExitCode::kDaemonSilent, explain(answer.error(), socket)}, json);
  }
  if (Status status = accepted(*answer); !status) {
    return report("job return", {ExitCode::kFailure, status.error().message}, json);
  }
  if (json) {
    print_whole(stdout, "{}\n", json_text(*answer));
  } else {
    print_to(
        stdout, "host {} takes job nodes{}\n", host,
        answer->value("was_out", false)
            ? " again, within seconds also of running jobs that have it"
            : ": it was not evacuated; a job that had lost it has it as a spare within seconds");
  }
  return to_int(ExitCode::kSuccess);
}

int JobStatusCommand::run() const {
  for (;;) {
    auto answer = call(socket, to_request(user_request::Status{}), kStatusTimeout);
    if (!answer) {
      return report("job status", {ExitCode::kDaemonSilent, explain(answer.error(), socket)}, json);
    }
    if (Status status = accepted(*answer); !status) {
      return report("job status", {ExitCode::kFailure, status.error().message}, json);
    }
    if (json) {
      print_whole(stdout, "{}\n", json_text(*answer));
    } else {
      if (watch) print_as_it_is(stdout, "\033[H\033[2J");
      for (const auto& job : answer->at("jobs")) print_job(job);
      for (const auto& [home, error] : answer->at("silent_homes").items()) {
        print_to(stdout, "host {} does not answer for its jobs: {}\n", home,
                 error.get<std::string>());
      }
      if (answer->at("jobs").empty()) print_to(stdout, "no jobs\n");
      if (answer->value("out", false)) {
        const std::string host = answer->value("host", "");
        print_to(stdout, "host {} was evacuated and takes no job nodes until: ppmr job return {}\n",
                 host, host);
      }
    }
    if (!watch) return to_int(ExitCode::kSuccess);
    std::this_thread::sleep_for(kWatchInterval);
  }
}

}  // namespace ppmr
