#include "jobs/node/job_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/without_exceptions.h"
#include "jobs/command/command_client.h"
#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kPatience{20};
constexpr std::string_view kNamespaces = "/run/netns/";

// While a node moves, its peers retransmit. With the default settings, the pause between two
// attempts grows to twice the downtime. With these settings, it grows to one second at most.
// tcp_rto_max_ms (Linux 6.15) also shortens the time until the kernel gives up a connection. The
// higher number of retries compensates for this.
constexpr std::array<std::pair<const char*, const char*>, 3> kTcpSettings = {{
    {"tcp_rto_max_ms", "1000"},
    {"tcp_retries2", "200"},
    {"tcp_early_retrans", "0"},
}};

std::array<uint8_t, 4> bytes_of(const std::string& address) {
  std::array<uint8_t, 4> bytes{};
  inet_pton(AF_INET, address.c_str(), bytes.data());
  return bytes;
}

Status run_ip(std::vector<std::string> words) {
  words.insert(words.begin(), "ip");
  auto output = run_successfully(words, kPatience);
  if (!output) return failure(output.error());
  return {};
}

std::string namespace_path(const std::string& container) {
  return std::string(kNamespaces) + container;
}

// Sets kTcpSettings in the network namespace of this thread, except those that this kernel lacks.
Status set_tcp() {
  for (const auto& [name, value] : kTcpSettings) {
    std::ofstream file(fmt::format("/proc/sys/net/ipv4/{}", name));
    if (file) file << value;
  }
  return {};
}

}  // namespace

// Runs the work on a new thread, because setns(2) changes the thread for good.
Status in_namespace(const std::string& container, const std::function<Status()>& work) {
  const std::string path = namespace_path(container);
  const UniqueFd target(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!target) return system_failure("open the network namespace", path);
  Status done;
  std::thread([&] {
    done = setns(target.get(), CLONE_NEWNET) == 0
               ? without_exceptions(work)
               : system_failure("enter the network namespace", path);
  }).join();
  return done;
}

Result<int> bridge_mtu_bytes(const std::string& bridge) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  bridge.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!socket || ioctl(socket.get(), SIOCGIFMTU, &request) != 0) {
    return system_failure("find the bridge", bridge);
  }
  return request.ifr_mtu;
}

std::string mac_of(const std::string& address) {
  const auto bytes = bytes_of(address);
  return fmt::format("02:00:{:02x}:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2], bytes[3]);
}

ContainerPort port_of(const JobNetwork& network, const std::string& container,
                      const std::string& address) {
  const auto bytes = bytes_of(address);
  return {.interface =
              fmt::format("pj{:02x}{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2], bytes[3]),
          .bridge = network.bridge,
          .network_namespace = namespace_path(container)};
}

Status create_port(const JobNetwork& network, const std::string& container,
                   const std::string& address) {
  if (std::filesystem::exists(namespace_path(container))) {
    return failure(EEXIST, "the network namespace " + container + " exists already");
  }
  const std::string port = port_of(network, container, address).interface;
  const auto of_bridge = bridge_mtu_bytes(network.bridge);
  if (!of_bridge) return failure(of_bridge.error());
  const std::string mtu = std::to_string(network.mtu_bytes > 0 ? network.mtu_bytes : *of_bridge);
  const std::vector<std::vector<std::string>> steps = {
      {"netns", "add", container},
      // Makes both ends with their final names, and one end directly in the namespace. With a
      // preliminary name on the host, another program could take that name first.
      {"link", "add", port, "mtu", mtu, "type", "veth", "peer", "name", "eth0", "mtu", mtu, "netns",
       container},
      {"-n", container, "link", "set", "eth0", "address", mac_of(address), "up"},
      {"-n", container, "link", "set", "lo", "up"},
      {"-n", container, "address", "add", fmt::format("{}/{}", address, network.prefix_bits), "dev",
       "eth0"},
      {"link", "set", port, "up"},
  };
  Status done;
  for (const auto& step : steps) {
    if (done) done = run_ip(step);
  }
  if (done) done = in_namespace(container, set_tcp);
  if (!done) (void)remove_port(container);
  return done;
}

Status add_neighbours(const std::string& container, const std::string& hosts,
                      const std::string& file) {
  std::ofstream commands(file);
  std::istringstream lines(hosts);
  for (std::string address, name; lines >> address >> name;) {
    commands << fmt::format("neighbour replace {} lladdr {} dev eth0 nud permanent\n", address,
                            mac_of(address));
  }
  commands.close();
  if (!commands) return system_failure("write", file);
  return run_ip({"-n", container, "-batch", file});
}

Status remove_port(const std::string& container) {
  if (!std::filesystem::exists(namespace_path(container))) return {};
  // A process that still uses the namespace would keep the pair alive, and so the port on the host.
  (void)run_ip({"-n", container, "link", "delete", "eth0"});
  return run_ip({"netns", "delete", container});
}

Result<UniqueFd> connect_through_port(const std::string& container, const std::string& address,
                                      std::chrono::milliseconds timeout) {
  Result<UniqueFd> socket = failure(EIO, "");
  Status done = in_namespace(container, [&]() -> Status {
    socket = connect_to_job_node(address, timeout);
    return {};
  });
  if (!done) return failure(done.error());
  return socket;
}

}  // namespace ppmr
