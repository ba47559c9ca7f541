// The search collects the keys of all shareable objects in the trees ("pipe:[71]", "memory 00:01
// 92"). Then it makes one pass over all other processes and looks for the same keys. Rejected:
// kcmp(2). It compares open files exactly, but pair by pair: n * m calls instead of one pass over
// /proc.
#include "processes/relations.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "processes/sockets.h"

namespace ppmr {
namespace {

struct Shareable {
  RelationKind kind;
  std::string object;  // for messages
};

// A shareable object that a process has, and its key.
struct Holding {
  std::string key;
  Shareable what;
};

bool is_named_pipe(pid_t pid, int fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  struct statx found;
  // Cached attributes are enough, so this sends no request to the daemon of a file system.
  return statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE, &found) == 0 &&
         S_ISFIFO(found.stx_mode);
}

std::string eventfd_id(pid_t pid, int fd) {
  const auto info = read_process_file(pid, fmt::format("fdinfo/{}", fd));
  const size_t at = info ? info->find("eventfd-id:") : std::string::npos;
  if (at == std::string::npos) return "";
  return info->substr(at, info->find('\n', at) - at);
}

std::string socket_key(uint64_t inode) { return fmt::format("socket:[{}]", inode); }

std::optional<Holding> holding_of(pid_t pid, const Descriptor& open) {
  if (open.target.starts_with("pipe:[")) return Holding{open.target, {RelationKind::kPipe, ""}};
  if (open.target.starts_with("socket:[")) return Holding{open.target, {RelationKind::kSocket, ""}};
  if (open.target == "anon_inode:[eventfd]") {
    const std::string id = eventfd_id(pid, open.number);
    if (!id.empty()) return Holding{id, {RelationKind::kEventfd, ""}};
  }
  if (open.target.starts_with('/') && is_named_pipe(pid, open.number))
    return Holding{"named pipe " + open.target, {RelationKind::kNamedPipe, open.target}};
  return std::nullopt;
}

std::optional<Holding> holding_of(const Mapping& mapping) {
  if (!mapping.shared) return std::nullopt;
  const std::string key = fmt::format("memory {} {}", mapping.device, mapping.inode);
  // The inode of a System V segment is its identifier, which may be 0. Segments with equal
  // identifiers in different IPC namespaces have different devices.
  if (mapping.deleted && mapping.path.starts_with("/SYSV"))
    return Holding{key + " sysv", {RelationKind::kSystemVMemory, ""}};
  const bool anonymous = mapping.deleted && mapping.path == "/dev/zero";
  if (anonymous || mapping.path.starts_with("/memfd:") || mapping.path.starts_with("/dev/shm/")) {
    return Holding{key, {RelationKind::kSharedMemory, anonymous ? std::string() : mapping.path}};
  }
  return std::nullopt;
}

// Returns the shareable objects of one process. `wanted` limits the named pipes, because their
// check costs a system call per open file; null: all named pipes.
Result<std::vector<Holding>> holdings_of(pid_t pid, bool read_memory,
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
  if (!read_memory) return holdings;
  const auto mappings = read_mappings(pid);
  if (!mappings) return failure(mappings.error());
  for (const Mapping& mapping : *mappings) {
    if (auto holding = holding_of(mapping)) holdings.push_back(std::move(*holding));
  }
  return holdings;
}

// One search; its members are the results of its steps.
class Search {
 public:
  Search(const ProcessTable& table, const std::vector<ProcessTree>& trees)
      : table_(table), trees_(trees) {}

  Result<std::vector<Relation>> run() {
    if (Status read = read_trees(); !read) return failure(read.error());
    if (Status found = find_connections(); !found) return failure(found.error());
    read_other_processes();
    relate_objects();
    relate_connections();
    return std::move(relations_);
  }

 private:
  static constexpr size_t kNoTree = ~size_t{0};
  // The processes that have an object, sorted by tree. Processes that stay (kNoTree) are last.
  using Holders = std::set<std::pair<size_t, pid_t>>;

  struct Connection {
    RelationKind kind;
    std::string object;
    std::string near, far;  // keys of its two sockets; a process of a tree has `near`
  };

  Status read_trees();
  Status find_connections();
  void find_unix_connections(const UnixSockets& sockets);
  void find_tcp_connections(const std::vector<InternetSocket>& sockets);
  void read_other_processes();
  void relate_objects();
  void relate_connections();
  void relate(const Shareable& what, const Holders& near, const Holders& far);
  const Holders& holders_of(const std::string& key) const {
    static const Holders kNone;
    const auto found = holders_.find(key);
    return found == holders_.end() ? kNone : found->second;
  }

  const ProcessTable& table_;
  const std::vector<ProcessTree>& trees_;
  std::map<std::string, Shareable> objects_;  // objects of the trees, by key
  std::vector<Connection> connections_;
  std::map<std::string, Holders> holders_;  // key of an object or of a connected socket -> holders
  // The kinds and holders of the items in relations_. Objects of the same kind with the same
  // holders make one relation.
  std::set<std::tuple<RelationKind, std::vector<pid_t>, std::vector<pid_t>, std::vector<pid_t>>>
      reported_;
  std::vector<Relation> relations_;
};

Status Search::read_trees() {
  for (size_t tree = 0; tree < trees_.size(); ++tree) {
    for (const ProcessStat& process : trees_[tree].processes) {
      const auto holdings = holdings_of(process.pid, true, nullptr);
      if (!holdings) {
        const bool ended = holdings.error().errno_value == ESRCH;
        if (ended && process.pid != trees_[tree].root) continue;
        if (!ended) return failure(holdings.error());
        return failure(ESRCH, fmt::format("process {} ({}) ended during the check", process.pid,
                                          process.name));
      }
      for (const Holding& holding : *holdings) {
        objects_.emplace(holding.key, holding.what);
        holders_[holding.key].emplace(tree, process.pid);
      }
    }
  }
  return {};
}

Status Search::find_connections() {
  // To list the sockets of a namespace, the kernel searches all buckets of a hash table, which
  // takes some milliseconds.
  const bool have_sockets = std::any_of(objects_.begin(), objects_.end(), [](const auto& object) {
    return object.first.starts_with("socket:[");
  });
  if (!have_sockets) return {};
  std::set<std::string> searched;
  for (const ProcessTree& tree : trees_) {
    for (const ProcessStat& process : tree.processes) {
      const auto network = read_process_link(process.pid, "ns/net");
      if (!network || !searched.insert(*network).second) continue;
      const auto unix_sockets = read_unix_sockets(process.pid);
      const auto internet_sockets = read_internet_sockets(process.pid);
      for (const Error* error : {unix_sockets ? nullptr : &unix_sockets.error(),
                                 internet_sockets ? nullptr : &internet_sockets.error()}) {
        if (error != nullptr && error->errno_value != ESRCH) return failure(*error);
      }
      if (unix_sockets) find_unix_connections(*unix_sockets);
      if (internet_sockets) find_tcp_connections(*internet_sockets);
    }
  }
  return {};
}

void Search::find_unix_connections(const UnixSockets& sockets) {
  for (const auto& [key, what] : objects_) {
    const auto found = sockets.find(inode_in(key, "socket"));
    if (found == sockets.end() || found->second.peer == 0) continue;
    const auto peer = sockets.find(found->second.peer);
    std::string path = found->second.path;
    if (peer != sockets.end() && !peer->second.path.empty()) path = peer->second.path;
    const bool datagram = found->second.type == SOCK_DGRAM;
    connections_.push_back({datagram ? RelationKind::kUnixDatagram : RelationKind::kUnixStream,
                            path, key, socket_key(found->second.peer)});
  }
}

void Search::find_tcp_connections(const std::vector<InternetSocket>& sockets) {
  using Ends = std::tuple<std::string, uint16_t, std::string, uint16_t>;
  std::map<Ends, uint64_t> by_ends;
  for (const InternetSocket& socket : sockets) {
    if (socket.is_connection() && socket.inode != 0)
      by_ends[{socket.local_address, socket.local_port, socket.remote_address,
               socket.remote_port}] = socket.inode;
  }
  for (const auto& [ends, inode] : by_ends) {
    const auto& [local, local_port, remote, remote_port] = ends;
    const auto peer = by_ends.find({remote, remote_port, local, local_port});
    if (peer == by_ends.end() || !objects_.contains(socket_key(inode))) continue;
    connections_.push_back({RelationKind::kTcpConnection, fmt::format("{}:{}", remote, remote_port),
                            socket_key(inode), socket_key(peer->second)});
  }
}

void Search::read_other_processes() {
  std::set<std::string> wanted;
  bool read_memory = false;
  for (const auto& [key, what] : objects_) {
    wanted.insert(key);
    read_memory |= key.starts_with("memory ");
  }
  for (const Connection& connection : connections_) wanted.insert(connection.far);
  if (wanted.empty()) return;
  std::set<pid_t> moved;
  for (const ProcessTree& tree : trees_) {
    for (const ProcessStat& process : tree.processes) moved.insert(process.pid);
  }
  for (const auto& [pid, stat] : table_) {
    if (stat.kernel_thread || stat.is_dead() || moved.contains(pid)) continue;
    const auto holdings = holdings_of(pid, read_memory, &wanted);
    if (!holdings) continue;  // the process has ended, or ppmr may not read it
    for (const Holding& holding : *holdings) {
      if (wanted.contains(holding.key)) holders_[holding.key].emplace(kNoTree, pid);
    }
  }
}

void Search::relate_objects() {
  // The two sockets of a Unix stream are one object.
  std::set<std::string> done;
  for (const Connection& connection : connections_) {
    if (connection.kind != RelationKind::kUnixStream) continue;
    const bool is_new = done.insert(connection.near).second;
    if (!done.insert(connection.far).second && !is_new) continue;
    Holders holders = holders_of(connection.near);
    holders.merge(Holders(holders_of(connection.far)));
    relate({connection.kind, connection.object}, holders, holders);
  }
  for (const auto& [key, what] : objects_) {
    if (!done.contains(key)) relate(what, holders_of(key), holders_of(key));
  }
}

void Search::relate_connections() {
  std::set<std::pair<std::string, std::string>> done;
  for (const Connection& connection : connections_) {
    if (connection.kind == RelationKind::kUnixStream) continue;
    if (!done.insert(std::minmax(connection.near, connection.far)).second) continue;
    const Holders& near = holders_of(connection.near);
    const Holders& far = holders_of(connection.far);
    const size_t tree = near.begin()->first;
    const bool stays_within = std::any_of(far.begin(), far.end(),
                                          [&](const auto& holder) { return holder.first == tree; });
    if (!stays_within) relate({connection.kind, connection.object}, near, far);
  }
}

// Adds a relation between the processes of the first tree in `near` and all processes in `far`
// outside of that tree. `near` must not consist only of processes that stay (kNoTree).
void Search::relate(const Shareable& what, const Holders& near, const Holders& far) {
  Relation relation{.kind = what.kind, .object = what.object};
  const size_t inside = near.begin()->first;
  for (const auto& [tree, pid] : near) {
    if (tree == inside) relation.inside.push_back(pid);
  }
  for (const auto& [tree, pid] : far) {
    if (tree == inside) continue;
    (tree == kNoTree ? relation.staying : relation.in_other_trees).push_back(pid);
  }
  if (relation.staying.empty() && relation.in_other_trees.empty()) return;
  if (reported_.emplace(what.kind, relation.inside, relation.staying, relation.in_other_trees)
          .second)
    relations_.push_back(std::move(relation));
}

}  // namespace

Result<std::vector<Relation>> find_relations(const ProcessTable& table,
                                             const std::vector<ProcessTree>& trees) {
  return Search(table, trees).run();
}

}  // namespace ppmr
