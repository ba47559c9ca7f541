#include "cli/doctor/target_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/host_name.h"
#include "base/json_message.h"
#include "base/json_text.h"
#include "base/parse_json.h"
#include "daemon/command_line/size_option.h"
#include "migration/records/ownership_record.h"
#include "preflight/preflight.h"
#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "rdma_stream/control/agent_frames.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// The target runs `criu check` before it answers.
constexpr milliseconds kAnswerPatience{30'000};
// A measured difference can include the time that an answer takes. On a busy node that is less than
// this limit.
constexpr double kClocksDifferMaxS = 0.2;

Diagnosis unreachable(const std::string& address, const Error& error) {
  switch (error.errno_value) {
    case EINVAL:
      return problem("target-name", error.message, "Give --target as HOST:PORT");
    case ECONNREFUSED:
      return problem(
          "target-port",
          fmt::format("the host of {} is there, but nothing listens on the port", address),
          "Start `ppmr target` there, or correct the port: `ppmr status` at the target "
          "shows its --listen address");
    case ETIMEDOUT:
      return problem("target-port",
                     fmt::format("{} does not answer at all: a firewall drops the packets, or the "
                                 "host is down",
                                 address),
                     "Open the port for this node in the firewalls between the two, and check that "
                     "the host runs");
    case kNoAddress:
      return problem("target-name",
                     fmt::format("the name in {} has no address: {}", address, error.message),
                     "Correct the name, or add it to the name service or /etc/hosts");
    default:
      return problem("target-port", fmt::format("{} cannot be reached: {}", address, error.message),
                     "Check the network between the nodes, and its routes");
  }
}

Diagnosis not_authenticated(const std::string& address, const Error& error) {
  if (error.errno_value == ETIMEDOUT) {
    return problem(
        "target-handshake",
        fmt::format("{} accepts connections, but sends nothing: {}", address, error.message),
        "Check that the port is that of ppmr, and that the target is not stopped "
        "(`ppmr status` there)");
  }
  if (error.errno_value == EACCES) {
    return problem("target-credentials", error.message,
                   "Compare the keys of both nodes (`ppmr keygen` prints the id of a key, `ppmr "
                   "doctor --key-file` shows it), or the certificates and --allow-peer");
  }
  if (error.errno_value == EPERM || error.errno_value == EINVAL) {
    return problem("target-credentials", error.message,
                   "Give the same --key-file or --tls-... options as the source");
  }
  return problem("target-handshake",
                 fmt::format("the handshake with {} failed: {}", address, error.message),
                 "Check that the port is that of ppmr, and that both nodes use the same kind of "
                 "credentials");
}

Diagnosis refused(const Error& error) {
  if (error.errno_value == EPROTONOSUPPORT) {
    return problem("target-version", error.message,
                   "Install the same version of ppmr on both nodes");
  }
  if (error.errno_value == ECONNREFUSED) {
    return problem("target-restarts", error.message,
                   "Change the options of the target, and start it again");
  }
  return not_authenticated("the target", error);
}

std::string list_missing(const std::vector<std::string>& wanted,
                         const std::vector<std::string>& there) {
  std::vector<std::string> missing;
  std::set_difference(wanted.begin(), wanted.end(), there.begin(), there.end(),
                      std::back_inserter(missing));
  std::string text;
  for (const std::string& name : missing) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Returns the target's answer to the preflight of a migration without processes.
Result<PreflightAnswers> ask_target(Connection& connection) {
  const PreflightQuestions none;
  const json request = to_request(make_request(none));
  if (auto sent = write_agent_frame(connection, json_text(request)); !sent) {
    return failure(sent.error());
  }
  const auto text = read_agent_frame(connection, kAnswerPatience);
  if (!text) return failure(text.error());
  return read_answers(parse_json(*text), none);
}

}  // namespace

Diagnoses compare_nodes(const NodeFacts& here, const NodeFacts& target) {
  Diagnoses found;
  if (target.criu_path.empty() || !target.criu_problem.empty()) {
    found.push_back(problem("target-criu",
                            target.criu_path.empty()
                                ? "the target has no CRIU, so it can restart nothing"
                                : fmt::format("CRIU {} of the target does not work there: {}",
                                              target.criu_version, target.criu_problem),
                            "Run `ppmr doctor` at the target"));
  } else if (target.criu_version != here.criu_version) {
    found.push_back(warning("target-criu",
                            fmt::format("the target has CRIU {}, this node has {}",
                                        target.criu_version, here.criu_version),
                            "Install the same version on both nodes: an older one may not read the "
                            "images of a newer one"));
  } else {
    found.push_back(ok("target-criu", fmt::format("the target has a working CRIU {}, as this node",
                                                  target.criu_version)));
  }
  const std::string missing = list_missing(here.cpu_features, target.cpu_features);
  if (here.architecture != target.architecture) {
    found.push_back(problem("target-processor",
                            fmt::format("the target's processor is {}, that of this node {}",
                                        target.architecture, here.architecture),
                            "Choose a target with the same kind of processor"));
  } else if (!missing.empty()) {
    found.push_back(warning("target-processor",
                            fmt::format("the target's processor lacks {}: a process that uses it "
                                        "cannot move there",
                                        missing),
                            "Choose a target with a newer processor, or start the programs without "
                            "these instructions"));
  } else {
    found.push_back(ok("target-processor",
                       "the target's processor has all instructions that programs may use here"));
  }
  if (here.rdma_ports.empty() && target.rdma_ports.empty()) {
    found.push_back(ok("target-rdma", "neither node has an RDMA port: ppmr uses TCP"));
  } else if (here.rdma_ports.empty() || target.rdma_ports.empty()) {
    found.push_back(
        warning("target-rdma",
                fmt::format("only {} has an RDMA port that can be used, so ppmr uses TCP",
                            here.rdma_ports.empty() ? "the target" : "this node"),
                "Run `ppmr devices` on the other node, which shows why"));
  } else {
    found.push_back(
        ok("target-rdma", fmt::format("both nodes have an RDMA port: {} here, {} at "
                                      "the target",
                                      here.rdma_ports.front(), target.rdma_ports.front())));
  }
  found.push_back(ok("target-memory", fmt::format("the target has {} of memory available",
                                                  format_size(target.memory_available_bytes))));
  return found;
}

Diagnosis compare_clocks(int64_t ahead_ns) {
  const double ahead_s = static_cast<double>(ahead_ns) / 1e9;
  if (std::abs(ahead_s) <= kClocksDifferMaxS) {
    return ok("target-clock",
              fmt::format("the clocks of both nodes agree to {} s", kClocksDifferMaxS));
  }
  return warning(
      "target-clock",
      fmt::format("the target's clock is {:.1f} s {} this one: the records of both nodes "
                  "have other times, but downtimes are right",
                  std::abs(ahead_s), ahead_s > 0 ? "ahead of" : "behind"),
      "Synchronise the clocks of both nodes (chrony or systemd-timesyncd)");
}

Diagnoses check_target(const TargetQuestion& question, const NodeFacts& here) {
  Diagnoses found;
  const std::string& address = question.address;
  const auto round_trip = measure_round_trip(address, question.patience);
  if (!round_trip && round_trip.error().errno_value != EOPNOTSUPP) {
    return {unreachable(address, round_trip.error())};
  }
  found.push_back(
      ok("target-port", round_trip
                            ? fmt::format("{} accepts connections; a round trip takes {:.3f} ms",
                                          address, static_cast<double>(round_trip->count()) / 1000)
                            : fmt::format("{} accepts connections", address)));
  const auto fail = [&](Diagnosis why) {
    found.push_back(std::move(why));
    return std::move(found);
  };
  auto security = Security::load(question.credentials);
  if (!security) return fail(not_authenticated(address, security.error()));
  auto connector = (*security)->connector(address, PeerRole::kMigrate);
  if (!connector) return fail(not_authenticated(address, connector.error()));
  auto connection = (*connector)->connect(question.patience);
  if (!connection) return fail(not_authenticated(address, connection.error()));
  (*connection)->set_write_timeout(question.patience);
  const auto welcome = greet_target(**connection, wire::AgentHello{host_name()}, question.patience);
  if (!welcome) return fail(refused(welcome.error()));
  if (auto checked = (*connector)->check_target(**connection, welcome->target_name); !checked) {
    return fail(not_authenticated(address, checked.error()));
  }
  const std::string name = readable(std::as_bytes(std::span(welcome->target_name)));
  found.push_back(ok("target-credentials",
                     (*security)->authenticates()
                         ? fmt::format("this node and the target '{}' accept each other", name)
                         : fmt::format("the target '{}' asks for no credentials", name)));
  found.push_back(ok("target-version", "both nodes use the same version of the protocol"));
  found.push_back(ok("target-restarts", "the target restarts processes for this node"));
  auto answers = ask_target(**connection);
  if (!answers) {
    return fail(problem("target-criu",
                        "the target's agent does not answer: " + answers.error().message,
                        "Look at the log of the target; run `ppmr doctor` there"));
  }
  // The target reads its clock last, so its answer is half a round trip old.
  const int64_t answer_ns = round_trip ? round_trip->count() * 1000 / 2 : 0;
  found.push_back(compare_clocks(answers->node.clock_ns + answer_ns - realtime_ns()));
  for (Diagnosis& one : compare_nodes(here, answers->node)) found.push_back(std::move(one));
  return found;
}

}  // namespace ppmr
