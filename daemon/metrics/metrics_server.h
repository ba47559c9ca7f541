// Answers `GET /metrics` in Prometheus's text format, version 0.0.4.
//
//   Prometheus --HTTP, loopback--> one thread of libmicrohttpd --> Collectable --> the status
//
// Scrapers cannot exhaust the daemon: one thread serves at most kScrapersMax connections of
// kScraperMemoryBytes each, closes connections that are idle for kScraperTimeout, and collects at
// most once in kReuse.
//
// Rejected: the HTTP server of prometheus-cpp (civetweb). It opens its socket itself, so the daemon
// would have to start it before it drops its rights. It also starts threads at once, and a process
// with threads cannot drop its rights.
//
// dlopen() loads libmicrohttpd when --metrics is given. Rejected: to link it. It would bring GnuTLS
// and nine more libraries into every command of ppmr, even into commands that run while a process
// is frozen.
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
// All scrapes within this time get the same values.
inline constexpr std::chrono::milliseconds kReuse{200};

// Threads: created and destroyed by one thread. The thread of this object calls the collectable.
class MetricsServer {
 public:
  // Loads the HTTP library and opens a listening socket at the address of --metrics. Both need
  // rights that the daemon drops later. Errors: ENOENT if the library is missing; those of
  // listen_on_loopback().
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
