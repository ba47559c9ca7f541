#include "restart_loader/criu/network_lock.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "processes/proc_files.h"
#include "processes/visit_namespace.h"
#include "restart_loader/criu/nft_tables.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

using Words = std::vector<std::string>;

// CRIU's own packets have this mark (SOCCR_MARK in its soccr.h).
constexpr const char* kMark = "0xC114";
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

// A command of CRIU is a process of its own: it does not end with CRIU, and adds its rule later.
Status await_commands_of_criu(const std::function<bool(pid_t, const std::string&)>& is_one) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const auto all = read_all_processes();
    if (!all) return failure(all.error());
    pid_t found = 0;
    for (const ProcessStat& process : *all) {
      const auto words = read_command_line(process.pid);
      if (!process.is_dead() && words && is_one(process.pid, *words)) found = process.pid;
    }
    if (found == 0) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      return failure(ETIMEDOUT, fmt::format("process {}, which CRIU has started to lock "
                                            "connections, does not end",
                                            found));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// The command that has made the rule.
std::string made_by(Words unlock) {
  std::replace(unlock.begin(), unlock.end(), std::string("-D"), std::string("-I"));
  return fmt::format("{}", fmt::join(unlock, " "));
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

std::vector<Words> commands_to_unlock(const ConnectionInRepair& connection) {
  const ConnectionEnd &local = connection.local, &remote = connection.remote;
  const std::string program = is_ipv4(local) ? "iptables" : "ip6tables";
  const auto rule = [&](const char* chain, const ConnectionEnd& from, const ConnectionEnd& to) {
    return Words{program,
                 "-w",
                 "-t",
                 "filter",
                 "-D",
                 chain,
                 "--protocol",
                 "tcp",
                 "-m",
                 "mark",
                 "!",
                 "--mark",
                 kMark,
                 "--source",
                 address_of(from),
                 "--sport",
                 std::to_string(from.port),
                 "--destination",
                 address_of(to),
                 "--dport",
                 std::to_string(to.port),
                 "-j",
                 "DROP"};
  };
  return {rule("INPUT", remote, local), rule("OUTPUT", local, remote)};
}

std::string nft_element_of(const ConnectionInRepair& connection) {
  const ConnectionEnd &local = connection.local, &remote = connection.remote;
  return remote.address + padded_port(remote.port) + local.address + padded_port(local.port);
}

Status unlock_connections(const std::vector<ConnectionInRepair>& connections) {
  std::vector<const ConnectionInRepair*> locked;
  for (const ConnectionInRepair& connection : connections) {
    if (!connection.remote.address.empty()) locked.push_back(&connection);
  }
  if (locked.empty()) return {};
  std::vector<Words> commands;
  for (const ConnectionInRepair* connection : locked) {
    for (Words& command : commands_to_unlock(*connection)) commands.push_back(std::move(command));
  }
  const Status ended = await_commands_of_criu([&](pid_t, const std::string& words) {
    return words.find(kMark) != std::string::npos &&
           std::any_of(commands.begin(), commands.end(), [&](const Words& command) {
             return words.find(made_by(command)) != std::string::npos;
           });
  });
  if (!ended) return ended;
  if (Status run = run_all(commands); !run) return run;
  return remove_tables_if([&](const std::string& table) {
    for (const ConnectionInRepair* connection : locked) {
      const char* set = is_ipv4(connection->local) ? "conns4" : "conns6";
      if (nft_set_has(table, set, nft_element_of(*connection))) return true;
    }
    return false;
  });
}

Status unlock_namespace_of(pid_t pid) {
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
  const auto there = read_process_link(pid, "ns/net");
  if (!there) return failure(there.error());
  const Status ended = await_commands_of_criu([&](pid_t other, const std::string& words) {
    return words.find("tables-restore") != std::string::npos &&
           read_process_link(other, "ns/net").value_or("") == *there;
  });
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
