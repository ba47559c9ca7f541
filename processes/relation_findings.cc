// Turns relations into findings: which object is shared with which processes, and which processes
// to move instead.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "processes/relations.h"

namespace ppmr {
namespace {

struct Phrase {
  std::string one, several;  // "shares a pipe" for one process, "share a pipe" for several
  const char* preposition = "with";
};

Phrase describe(const Relation& relation) {
  const auto shares = [](const std::string& what) {
    return Phrase{"shares " + what, "share " + what};
  };
  const std::string named = relation.object.empty() ? "" : " (" + relation.object + ")";
  switch (relation.kind) {
    case RelationKind::kPipe:
      return shares("a pipe");
    case RelationKind::kNamedPipe:
      return shares("the named pipe " + relation.object);
    case RelationKind::kSocket:
      return shares("a socket");
    case RelationKind::kUnixStream:
      return {"is connected over a Unix socket" + named,
              "are connected over a Unix socket" + named};
    case RelationKind::kUnixDatagram:
      return {"sends to the Unix socket" + named, "send to the Unix socket" + named, "of"};
    case RelationKind::kTcpConnection:
      return {"has a TCP connection" + named, "have a TCP connection" + named};
    case RelationKind::kSharedMemory:
      return shares("memory" + named);
    case RelationKind::kSystemVMemory:
      return shares("System V memory");
    case RelationKind::kEventfd:
      return shares("an eventfd");
  }
  return {};
}

// Returns the root of the smallest tree that contains all of `pids`; 0 if there is no such tree or
// it cannot move.
pid_t common_root(const ProcessTable& table, const std::vector<pid_t>& pids) {
  const auto line_of = [&](pid_t pid) {
    std::vector<pid_t> line = ancestors_of(table, pid);
    line.insert(line.begin(), pid);
    return line;
  };
  std::vector<pid_t> common = line_of(pids.front());
  for (const pid_t pid : pids) {
    const std::vector<pid_t> line = line_of(pid);
    std::erase_if(common, [&](pid_t candidate) {
      return std::find(line.begin(), line.end(), candidate) == line.end();
    });
  }
  if (common.empty() || common.front() == 1) return 0;
  const std::vector<pid_t> own_line = line_of(getpid());
  const bool is_own = std::find(own_line.begin(), own_line.end(), common.front()) != own_line.end();
  return is_own ? 0 : common.front();
}

}  // namespace

Finding explain(const ProcessTable& table, const Relation& relation, const TreeOptions& options) {
  const Phrase phrase = describe(relation);
  std::string sentence = fmt::format("{} {}", name_processes(table, relation.inside),
                                     relation.inside.size() == 1 ? phrase.one : phrase.several);
  if (!relation.staying.empty()) {
    sentence += fmt::format(" {} {}, which {} not being moved", phrase.preposition,
                            name_processes(table, relation.staying),
                            relation.staying.size() == 1 ? "is" : "are");
  }
  if (!relation.in_other_trees.empty()) {
    sentence += fmt::format("{} {} {}, which would be moved separately",
                            relation.staying.empty() ? "" : ", and", phrase.preposition,
                            name_processes(table, relation.in_other_trees));
  }
  if (relation.kind == RelationKind::kTcpConnection) {
    return {Severity::kWarns, sentence,
            "the connection survives only if the address of the moved process moves with it"};
  }
  const bool datagram = relation.kind == RelationKind::kUnixDatagram;
  if (datagram && options.external_unix_sockets)
    return {Severity::kWarns, sentence,
            "at the target it sends to the socket of the same name there"};
  std::vector<pid_t> holders = relation.inside;
  for (const auto* others : {&relation.staying, &relation.in_other_trees})
    holders.insert(holders.end(), others->begin(), others->end());
  std::string remedy;
  if (const pid_t root = common_root(table, holders); root != 0) {
    remedy = fmt::format("move {} with all of its descendants instead", name_process(table, root));
  } else if (!datagram) {
    remedy = fmt::format(
        "they have no common ancestor that can be moved; start {} so that {} nothing (for example, "
        "with input and output redirected to files)",
        list_of(relation.inside), relation.inside.size() == 1 ? "it shares" : "they share");
  }
  if (datagram) {
    if (!remedy.empty()) remedy += ", or ";
    remedy += "pass `-- --ext-unix-sk` if the target has such a socket";
  }
  return {Severity::kStops, sentence, remedy};
}

}  // namespace ppmr
