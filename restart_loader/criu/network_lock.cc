#include "restart_loader/criu/network_lock.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

#include "processes/proc_files.h"
#include "processes/visit_namespace.h"
#include "restart_loader/criu/nft_tables.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using Words = std::vector<std::string>;

// CRIU's own packets have this mark (SOCCR_MARK in its soccr.h).
constexpr const char* kMark = "0xc114";
constexpr const char* kTableStart = "CRIU-";
// `-w` waits for other programs that change the rules.
constexpr std::chrono::milliseconds kPatience{10'000};
constexpr std::chrono::milliseconds kBetweenLooks{5};

bool is_ipv4(const ConnectionEnd& end) { return end.address.size() == sizeof(in_addr); }

std::string address_of(const ConnectionEnd& end) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(is_ipv4(end) ? AF_INET : AF_INET6, end.address.data(), text, sizeof(text));
  return text;
}

// Each part of a key fills 4 bytes.
std::string padded_port(uint16_t port) {
  const uint16_t network_order = htons(port);
  std::string bytes(reinterpret_cast<const char*>(&network_order), sizeof(network_order));
  bytes.resize(4);
  return bytes;
}

bool is_same_file(const std::string& one, const struct stat& other) {
  struct stat found {};
  return stat(one.c_str(), &found) == 0 && found.st_dev == other.st_dev &&
         found.st_ino == other.st_ino;
}

// A command that CRIU has started is a separate process. It does not end with CRIU, and may add its
// rule later. Its current directory is CRIU's work directory, also between the fork and the
// execution of the command.
Status await_commands_of_criu(const std::string& work_directory) {
  struct stat work {
  }, ppmr{};
  if (stat(work_directory.c_str(), &work) != 0 || stat("/proc/self/exe", &ppmr) != 0) return {};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const auto all = read_all_processes();
    if (!all) return failure(all.error());
    pid_t found = 0;
    for (const ProcessStat& process : *all) {
      const std::string directory = fmt::format("/proc/{}/", process.pid);
      const bool is_there = !process.is_dead() && is_same_file(directory + "cwd", work);
      if (is_there && !is_same_file(directory + "exe", ppmr)) found = process.pid;
    }
    if (found == 0) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      return failure(ETIMEDOUT,
                     fmt::format("process {}, which CRIU has started, does not end", found));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

Status run_all(const std::vector<Words>& commands) {
  for (const Words& command : commands) {
    // A command fails if its rule is not there. A program that is missing has made no rule.
    const auto done = run_command(command, kPatience);
    if (!done && done.error().errno_value == ETIMEDOUT) return failure(done.error());
  }
  return {};
}

Status remove_tables_if(const std::function<bool(const std::string& table)>& wanted) {
  const auto tables = list_nft_tables();
  if (!tables) return failure(tables.error());
  for (const std::string& table : *tables) {
    if (!table.starts_with(kTableStart) || !wanted(table)) continue;
    if (Status removed = remove_nft_table(table); !removed) return removed;
  }
  return {};
}

}  // namespace

std::vector<Words> commands_to_unlock(const TcpConnection& connection, const std::string& rules) {
  const ConnectionEnd &local = connection.local, &remote = connection.remote;
  const std::string program = is_ipv4(local) ? "iptables" : "ip6tables";
  std::vector<Words> commands;
  const auto add = [&](const std::string& chain, const ConnectionEnd& from,
                       const ConnectionEnd& to) {
    const std::string bits = is_ipv4(local) ? "32" : "128";
    const std::string rule = fmt::format(
        "{} -s {}/{} -d {}/{} -p tcp -m mark ! --mark {} -m tcp --sport {} --dport {} -j DROP",
        chain, address_of(from), bits, address_of(to), bits, kMark, from.port, to.port);
    if (rules.find("-A " + rule + "\n") == std::string::npos) return;
    Words command{program, "-w", "-t", "filter", "-D"};
    std::istringstream words(rule);
    for (std::string word; words >> word;) command.push_back(word);
    commands.push_back(std::move(command));
  };
  add("INPUT", remote, local);
  add("OUTPUT", local, remote);
  return commands;
}

std::string nft_element_of(const TcpConnection& connection) {
  const ConnectionEnd &local = connection.local, &remote = connection.remote;
  return remote.address + padded_port(remote.port) + local.address + padded_port(local.port);
}

Status unlock_connections(const std::vector<TcpConnection>& connections,
                          const std::string& work_directory) {
  std::vector<const TcpConnection*> locked;
  for (const TcpConnection& connection : connections) {
    if (!connection.remote.address.empty()) locked.push_back(&connection);
  }
  if (locked.empty()) return {};
  if (Status ended = await_commands_of_criu(work_directory); !ended) return ended;
  std::string rules;
  for (const char* program : {"iptables", "ip6tables"}) {
    // A program that is missing has made no rule.
    const auto listed = run_command({program, "-w", "-t", "filter", "-S"}, kPatience);
    if (listed) rules += listed->text;
  }
  for (const TcpConnection* connection : locked) {
    const Status run = run_all(commands_to_unlock(*connection, rules));
    if (!run) return run;
  }
  return remove_tables_if([&](const std::string& table) {
    for (const TcpConnection* connection : locked) {
      const char* set = is_ipv4(connection->local) ? "conns4" : "conns6";
      if (nft_set_has(table, set, nft_element_of(*connection))) return true;
    }
    return false;
  });
}

Status unlock_namespace_of(pid_t pid, const std::string& work_directory) {
  std::vector<Words> commands;
  for (const char* program : {"iptables", "ip6tables"}) {
    for (const Words& change : {Words{"-D", "INPUT", "-j", "CRIU"},
                                {"-D", "OUTPUT", "-j", "CRIU"},
                                {"-F", "CRIU"},
                                {"-X", "CRIU"}}) {
      Words command{program, "-w", "-t", "filter"};
      command.insert(command.end(), change.begin(), change.end());
      commands.push_back(std::move(command));
    }
  }
  const Status ended = await_commands_of_criu(work_directory);
  if (!ended) return ended;
  Status unlocked;
  const Status visited = visit_namespace(pid, "net", [&] {
    unlocked = run_all(commands);
    const Status removed = remove_tables_if([](const std::string&) { return true; });
    if (unlocked) unlocked = removed;
  });
  return visited ? unlocked : visited;
}

}  // namespace ppmr
