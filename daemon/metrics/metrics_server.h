// Answers `GET /metrics` in Prometheus's text format, version 0.0.4.
//
//   Prometheus --HTTP, loopback--> one thread of libmicrohttpd --> Collectable --> the status
//
// Scrapers cannot exhaust the daemon: one thread serves at most kScrapersMax connections of
// kScraperMemoryBytes each, closes those that are idle for kScraperTimeout, and collects at most
// once in kReuse.
//
// Rejected: the HTTP server of prometheus-cpp (civetweb). It opens its socket itself, which a
// daemon that has dropped its rights may not do, and starts its threads at once, which is too early
// before the drop. Rejected: linking libmicrohttpd. It brings GnuTLS and nine more libraries into
// every command of ppmr, also into those that run while a process is frozen.
#pragma once

#include <prometheus/collectable.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace ppmr {

inline constexpr unsigned int kScrapersMax = 8;
inline constexpr size_t kScraperMemoryBytes = size_t{16} << 10;
inline constexpr std::chrono::seconds kScraperTimeout{5};
// A later scrape within this time gets the same values.
inline constexpr std::chrono::milliseconds kReuse{200};

// Threads: created and destroyed by one thread. The thread of this object calls the collectable.
class MetricsServer {
 public:
  // Does the steps that need rights which the daemon drops later: loads the HTTP library and opens
  // a listening socket at the address of --metrics. Errors: ENOENT if the library is missing; those
  // of listen_on_loopback().
  static Result<UniqueFd> listen(const std::string& address);
  // Starts a server on a listening socket. `metrics` must live longer than the server. Errors:
  // EAGAIN when the library cannot start; ENOENT.
  static Result<std::unique_ptr<MetricsServer>> start(UniqueFd listener,
                                                      const prometheus::Collectable& metrics);
  ~MetricsServer();

  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  friend struct MetricsHandler;
  explicit MetricsServer(const prometheus::Collectable& metrics) : metrics_(metrics) {}
  int answer(MHD_Connection* connection, const std::string& path, const std::string& method);
  const std::string& page();

  const prometheus::Collectable& metrics_;
  // Only the server's thread uses these members.
  std::string page_;
  std::chrono::steady_clock::time_point collected_at_{};

  MHD_Daemon* daemon_ = nullptr;  // its thread uses the members above
};

}  // namespace ppmr
