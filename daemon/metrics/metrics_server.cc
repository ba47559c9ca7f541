#include "daemon/metrics/metrics_server.h"

#include <dlfcn.h>
#include <microhttpd.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <exception>

#include "daemon/metrics/loopback_listener.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The functions of the HTTP library. Only a daemon that needs the library loads it, because it
// brings GnuTLS. If ppmr linked it, all commands of ppmr would start later, even commands that run
// while a process is frozen.
struct HttpLibrary {
  decltype(&::MHD_start_daemon) start_daemon = nullptr;
  decltype(&::MHD_stop_daemon) stop_daemon = nullptr;
  decltype(&::MHD_create_response_from_buffer) create_response = nullptr;
  decltype(&::MHD_add_response_header) add_header = nullptr;
  decltype(&::MHD_queue_response) queue_response = nullptr;
  decltype(&::MHD_destroy_response) destroy_response = nullptr;
};

constexpr const char* kHttpLibrary = "libmicrohttpd.so.12";

Result<HttpLibrary> load_http_library() {
  // The library stays loaded until the process ends.
  void* const file = ::dlopen(kHttpLibrary, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    return failure(ENOENT, std::string("--metrics: load the HTTP server: ") + ::dlerror() +
                               ": install the package libmicrohttpd12");
  }
  HttpLibrary library;
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(file, name));
    complete = complete && function != nullptr;
  };
  find(library.start_daemon, "MHD_start_daemon");
  find(library.stop_daemon, "MHD_stop_daemon");
  find(library.create_response, "MHD_create_response_from_buffer");
  find(library.add_header, "MHD_add_response_header");
  find(library.queue_response, "MHD_queue_response");
  find(library.destroy_response, "MHD_destroy_response");
  if (complete) return library;
  return failure(ENOENT, std::string("--metrics: load the HTTP server: ") + kHttpLibrary +
                             " lacks a function: install Debian's libmicrohttpd12");
}

const Result<HttpLibrary>& http_library() {
  static const Result<HttpLibrary> library = load_http_library();
  return library;
}

constexpr const char* kTextFormat = "text/plain; version=0.0.4; charset=utf-8";

int send(MHD_Connection* connection, unsigned int code, const std::string& body,
         const char* type = "text/plain; charset=utf-8") {
  const HttpLibrary& library = *http_library();
  MHD_Response* const response =
      library.create_response(body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  library.add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
    library.add_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  const int queued = library.queue_response(connection, code, response);
  library.destroy_response(response);
  return queued;
}

}  // namespace

struct MetricsHandler {
  // The library calls this when the head of a request is complete, for each part of a body, and at
  // the end. MHD_NO closes the connection.
  static MHD_Result handle(void* server, MHD_Connection* connection, const char* path,
                           const char* method, const char*, const char*, size_t* upload_bytes,
                           void** seen) {
    if (*seen == nullptr) {
      *seen = server;
      return MHD_YES;
    }
    if (*upload_bytes > 0) return MHD_NO;
    try {
      return static_cast<MHD_Result>(
          static_cast<MetricsServer*>(server)->answer(connection, path, method));
    } catch (const std::exception& exception) {
      spdlog::error("cannot collect metrics: {}", exception.what());
      return MHD_NO;
    }
  }
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(
    UniqueFd listener, const prometheus::Collectable& metrics) {
  if (!http_library()) return failure(http_library().error());
  std::unique_ptr<MetricsServer> server(new MetricsServer(metrics));
  server->daemon_ = http_library()->start_daemon(
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, nullptr, nullptr,
      &MetricsHandler::handle, server.get(), MHD_OPTION_LISTEN_SOCKET, listener.get(),
      MHD_OPTION_CONNECTION_LIMIT, kScrapersMax, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kScraperMemoryBytes, MHD_OPTION_CONNECTION_TIMEOUT,
      static_cast<unsigned int>(kScraperTimeout.count()), MHD_OPTION_END);
  if (server->daemon_ == nullptr) {
    return failure(EAGAIN, "--metrics: cannot start the HTTP server: no thread or memory is left");
  }
  listener.release();  // the library closes it
  return server;
}

Result<UniqueFd> MetricsServer::listen(const std::string& address) {
  if (!http_library()) return failure(http_library().error());
  return listen_on_loopback(address);
}

MetricsServer::~MetricsServer() {
  if (daemon_ != nullptr) http_library()->stop_daemon(daemon_);
}

int MetricsServer::answer(MHD_Connection* connection, const std::string& path,
                          const std::string& method) {
  if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
    return send(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
  }
  if (path != "/metrics") return send(connection, MHD_HTTP_NOT_FOUND, "see /metrics\n");
  return send(connection, MHD_HTTP_OK, page(), kTextFormat);
}

const std::string& MetricsServer::page() {
  const auto now = std::chrono::steady_clock::now();
  if (page_.empty() || now - collected_at_ >= kReuse) {
    page_ = prometheus::TextSerializer().Serialize(metrics_.Collect());
    collected_at_ = now;
  }
  return page_;
}

}  // namespace ppmr
