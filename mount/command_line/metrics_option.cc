#include "mount/command_line/metrics_option.h"

#include <CLI/CLI.hpp>

#include "mount/metrics/loopback_listener.h"

namespace ppmr {

void add_metrics_option(CLI::App& app, std::string& address) {
  app.add_option("--metrics", address,
                 "serve metrics for Prometheus at http://ADDRESS/metrics: 127.0.0.1:PORT or "
                 "[::1]:PORT")
      ->type_name("ADDRESS")
      ->check([](const std::string& text) {
        const Status checked = check_metrics_address(text);
        return checked ? std::string() : checked.error().message;
      });
}

}  // namespace ppmr
