// First the keys of everything shareable in the trees ("pipe:[71]", "memory 00:01 92"), then one
// look at every other process for the same keys. kcmp(2) would compare open files exactly, but only
// pair by pair: n * m calls where one pass over /proc does.
#include "restart_loader/processes/relations.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <tuple>

#include "restart_loader/processes/sockets.h"

namespace ppmr {
namespace {

struct Shareable {
  RelationKind kind;
  std::string object;  // for people
};

// A process that holds something shareable under some key.
struct Holding {
  std::string key;
  Shareable what;
};

bool is_named_pipe(pid_t pid, int fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  struct statx found;
  // What the kernel knows already: a file system's daemon is not asked.
  return statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE, &found) == 0 &&
         S_ISFIFO(found.stx_mode);
}

std::string eventfd_id(pid_t pid, int fd) {
  const auto info = read_process_file(pid, fmt::format("fdinfo/{}", fd));
  const size_t at = info ? info->find("eventfd-id:") : std::string::npos;
  if (at == std::string::npos) return "";
  return info->substr(at, info->find('\n', at) - at);
}

std::optional<Holding> holding_of(pid_t pid, const Descriptor& open) {
  if (open.target.starts_with("pipe:["))
    return Holding{open.target, {RelationKind::kPipe, open.target}};
  if (open.target.starts_with("socket:["))
    return Holding{open.target, {RelationKind::kSocket, open.target}};
  if (open.target == "anon_inode:[eventfd]") {
    const std::string id = eventfd_id(pid, open.number);
    if (!id.empty()) return Holding{id, {RelationKind::kEventfd, id}};
  }
  if (open.target.starts_with('/') && is_named_pipe(pid, open.number))
    return Holding{"named pipe " + open.target, {RelationKind::kNamedPipe, open.target}};
  return std::nullopt;
}

std::optional<Holding> holding_of(const Mapping& mapping) {
  if (!mapping.shared) return std::nullopt;
  const std::string key = fmt::format("memory {} {}", mapping.device, mapping.inode);
  // Its inode is its id: 0 for the first. Another IPC namespace has the same ids on another device.
  if (mapping.deleted && mapping.path.starts_with("/SYSV"))
    return Holding{key + " sysv", {RelationKind::kSystemVMemory, mapping.path}};
  const bool anonymous = mapping.deleted && mapping.path == "/dev/zero";
  if (anonymous || mapping.path.starts_with("/memfd:") || mapping.path.starts_with("/dev/shm/")) {
    return Holding{key, {RelationKind::kSharedMemory, anonymous ? std::string() : mapping.path}};
  }
  return std::nullopt;
}

// What one process holds. `wanted` bounds the costlier looks: without it all are made.
Result<std::vector<Holding>> holdings_of(pid_t pid, bool look_at_memory,
                                         const std::set<std::string>* wanted) {
  std::vector<Holding> holdings;
  const auto open = read_descriptors(pid);
  if (!open) return failure(open.error());
  for (const Descriptor& descriptor : *open) {
    if (wanted != nullptr && descriptor.target.starts_with('/') &&
        !wanted->contains("named pipe " + descriptor.target))
      continue;
    if (auto holding = holding_of(pid, descriptor)) holdings.push_back(std::move(*holding));
  }
  if (!look_at_memory) return holdings;
  const auto mappings = read_mappings(pid);
  if (!mappings) return failure(mappings.error());
  for (const Mapping& mapping : *mappings) {
    if (auto holding = holding_of(mapping)) holdings.push_back(std::move(*holding));
  }
  return holdings;
}

// One search; its members are what its steps have found.
class Search {
 public:
  Search(const ProcessTable& table, const std::vector<ProcessTree>& trees)
      : table_(table), trees_(trees) {}

  Result<std::vector<Relation>> run() {
    if (Status looked = look_inside(); !looked) return failure(looked.error());
    if (Status asked = ask_for_connections(); !asked) return failure(asked.error());
    look_outside();
    return std::move(relations_);
  }

 private:
  struct Holder {
    pid_t pid;
    size_t tree;
    Shareable what;
  };

  Status look_inside();
  Status ask_for_connections();
  void connect_unix(const UnixSockets& sockets);
  void connect_internet(const std::vector<InternetSocket>& sockets);
  void look_outside();
  void relate(const Holder& inside, pid_t outside, size_t outside_tree);
  void want(uint64_t peer, const Holder& holder, RelationKind kind, const std::string& object);

  static constexpr size_t kNoTree = ~size_t{0};

  const ProcessTable& table_;
  const std::vector<ProcessTree>& trees_;
  std::multimap<std::string, Holder> inside_;  // by key
  // Other ends of connections, by the key of the other end; their owners are looked for.
  std::multimap<std::string, Holder> peers_;
  std::set<std::tuple<RelationKind, size_t, pid_t>> told_;
  std::vector<Relation> relations_;
};

Status Search::look_inside() {
  for (size_t tree = 0; tree < trees_.size(); ++tree) {
    for (const TreeProcess& process : trees_[tree].processes) {
      const auto holdings = holdings_of(process.pid, true, nullptr);
      if (!holdings) {
        const bool ended = holdings.error().errno_value == ESRCH;
        if (ended && process.pid != trees_[tree].root) continue;  // shares nothing any more
        if (!ended) return failure(holdings.error());
        return failure(ESRCH, fmt::format("process {} ({}) ended while it was looked at",
                                          process.pid, process.name));
      }
      for (const Holding& holding : *holdings)
        inside_.emplace(holding.key, Holder{process.pid, tree, holding.what});
    }
  }
  return {};
}

Status Search::ask_for_connections() {
  std::set<std::string> seen;
  for (const ProcessTree& tree : trees_) {
    for (const TreeProcess& process : tree.processes) {
      const auto network = read_process_link(process.pid, "ns/net");
      if (!network || !seen.insert(*network).second) continue;
      const auto unix_sockets = read_unix_sockets(process.pid);
      const auto internet_sockets = read_internet_sockets(process.pid);
      for (const Error* error : {unix_sockets ? nullptr : &unix_sockets.error(),
                                 internet_sockets ? nullptr : &internet_sockets.error()}) {
        if (error != nullptr && error->errno_value != ESRCH) return failure(*error);
      }
      if (unix_sockets) connect_unix(*unix_sockets);
      if (internet_sockets) connect_internet(*internet_sockets);
    }
  }
  return {};
}

void Search::want(uint64_t peer, const Holder& holder, RelationKind kind,
                  const std::string& object) {
  peers_.emplace(fmt::format("socket:[{}]", peer), Holder{holder.pid, holder.tree, {kind, object}});
}

void Search::connect_unix(const UnixSockets& sockets) {
  for (const auto& [key, holder] : inside_) {
    const auto found = sockets.find(inode_in(key, "socket"));
    if (found == sockets.end() || found->second.peer == 0) continue;
    const auto peer = sockets.find(found->second.peer);
    std::string path = found->second.path;
    if (peer != sockets.end() && !peer->second.path.empty()) path = peer->second.path;
    want(found->second.peer, holder,
         found->second.type == SOCK_DGRAM ? RelationKind::kUnixDatagram : RelationKind::kUnixStream,
         path);
  }
}

void Search::connect_internet(const std::vector<InternetSocket>& sockets) {
  using Ends = std::tuple<std::string, uint16_t, std::string, uint16_t>;
  std::map<Ends, uint64_t> by_ends;
  for (const InternetSocket& socket : sockets) {
    if (socket.is_connection() && socket.inode != 0)
      by_ends[{socket.local_address, socket.local_port, socket.remote_address,
               socket.remote_port}] = socket.inode;
  }
  for (const auto& [ends, inode] : by_ends) {
    const auto& [local, local_port, remote, remote_port] = ends;
    const auto [begin, end] = inside_.equal_range(fmt::format("socket:[{}]", inode));
    const auto peer = by_ends.find({remote, remote_port, local, local_port});
    if (begin == end || peer == by_ends.end()) continue;
    want(peer->second, begin->second, RelationKind::kTcpConnection,
         fmt::format("{}:{}", remote, remote_port));
  }
}

void Search::relate(const Holder& inside, pid_t outside, size_t outside_tree) {
  if (inside.tree == outside_tree) return;
  // Between two trees: told by the first of them.
  if (outside_tree != kNoTree && outside_tree < inside.tree) return;
  if (!told_.emplace(inside.what.kind, inside.tree, outside).second) return;
  relations_.push_back(
      {inside.what.kind, inside.pid, outside, inside.what.object, outside_tree != kNoTree});
}

void Search::look_outside() {
  std::set<std::string> wanted;
  bool look_at_memory = false;
  for (const auto& [key, holder] : inside_) {
    wanted.insert(key);
    look_at_memory |= key.starts_with("memory ");
  }
  for (const auto& [key, holder] : peers_) wanted.insert(key);
  if (wanted.empty()) return;
  std::set<pid_t> moved;
  for (const ProcessTree& tree : trees_) {
    for (const TreeProcess& process : tree.processes) moved.insert(process.pid);
  }
  const auto relate_key = [&](const std::string& key, pid_t pid, size_t tree) {
    for (const auto* holders : {&inside_, &peers_}) {
      const auto [begin, end] = holders->equal_range(key);
      // A connection whose other end is held in the tree, too, stays within it.
      const auto [own, own_end] = inside_.equal_range(key);
      for (auto holder = begin; holder != end; ++holder) {
        const bool stays_within =
            holders == &peers_ && std::any_of(own, own_end, [&](const auto& entry) {
              return entry.second.tree == holder->second.tree;
            });
        if (!stays_within) relate(holder->second, pid, tree);
      }
    }
  };
  const auto between_trees = inside_;
  for (const auto& [key, holder] : between_trees) relate_key(key, holder.pid, holder.tree);
  for (const auto& [pid, stat] : table_) {
    if (stat.kernel_thread || stat.is_dead() || moved.contains(pid)) continue;
    const auto holdings = holdings_of(pid, look_at_memory, &wanted);
    if (!holdings) continue;  // ended, or not for us to look at
    for (const Holding& holding : *holdings) relate_key(holding.key, pid, kNoTree);
  }
}

std::string describe(const Relation& relation, const std::string& outside) {
  const std::string named = relation.object.empty() ? "" : " (" + relation.object + ")";
  switch (relation.kind) {
    case RelationKind::kPipe:
      return "shares a pipe with " + outside;
    case RelationKind::kNamedPipe:
      return fmt::format("shares the named pipe {} with {}", relation.object, outside);
    case RelationKind::kSocket:
      return "shares a socket with " + outside;
    case RelationKind::kUnixStream:
      return fmt::format("is connected over a Unix socket{} with {}", named, outside);
    case RelationKind::kUnixDatagram:
      return fmt::format("sends to the Unix socket{} of {}", named, outside);
    case RelationKind::kTcpConnection:
      return fmt::format("has a TCP connection{} with {}", named, outside);
    case RelationKind::kSharedMemory:
      return fmt::format("shares memory{} with {}", named, outside);
    case RelationKind::kSystemVMemory:
      return "shares System V memory with " + outside;
    case RelationKind::kEventfd:
      return "shares an eventfd with " + outside;
  }
  return "";
}

// The closest process above both that can be moved; 0: there is none.
pid_t common_root(const ProcessTable& table, pid_t a, pid_t b) {
  std::vector<pid_t> of_a = ancestors_of(table, a), of_b = ancestors_of(table, b);
  of_a.insert(of_a.begin(), a);
  of_b.insert(of_b.begin(), b);
  std::set<pid_t> ours;
  for (pid_t pid : ancestors_of(table, getpid())) ours.insert(pid);
  ours.insert(getpid());
  for (pid_t pid : of_a) {
    if (std::find(of_b.begin(), of_b.end(), pid) == of_b.end()) continue;
    return pid == 1 || ours.contains(pid) ? 0 : pid;
  }
  return 0;
}

}  // namespace

Result<std::vector<Relation>> find_relations(const ProcessTable& table,
                                             const std::vector<ProcessTree>& trees) {
  return Search(table, trees).run();
}

Finding explain(const ProcessTable& table, const Relation& relation, const TreeOptions& options) {
  const std::string outside = name_process(table, relation.outside);
  const std::string sentence = fmt::format(
      "{} {}, which {}", name_process(table, relation.inside), describe(relation, outside),
      relation.outside_moves ? "would be moved as a tree of its own" : "is not being moved");
  if (relation.kind == RelationKind::kTcpConnection) {
    return {Severity::kWarns, sentence,
            "the connection survives only if the address of the one that moves goes with it"};
  }
  const bool datagram = relation.kind == RelationKind::kUnixDatagram;
  if (datagram && options.external_unix_sockets)
    return {Severity::kWarns, sentence, "at the target it sends to the socket of that name there"};
  std::string remedy;
  if (const pid_t root = common_root(table, relation.inside, relation.outside); root != 0) {
    remedy = root == relation.outside ? fmt::format("move {}, which started it, instead", outside)
                                      : fmt::format("move {}, which both were started by, instead",
                                                    name_process(table, root));
  } else if (!datagram) {
    remedy = fmt::format(
        "no process that can be moved is above both; start {} so that it shares "
        "nothing (input and output in files, say)",
        relation.inside);
  }
  if (datagram) {
    if (!remedy.empty()) remedy += ", or ";
    remedy += "give -- --ext-unix-sk, if the target has such a socket";
  }
  return {Severity::kStops, sentence, remedy};
}

}  // namespace ppmr
