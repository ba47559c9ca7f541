// The transport options of both daemons: --transport, --device and --gid-index; and the check of an
// address.
#pragma once

#include <string>

#include "rdma_stream/session/transport.h"
#include "rdma_stream/verbs/verbs.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

struct TransportOptions {
  TransportMode mode = TransportMode::kAuto;
  RailChoice rails;
};

void add_transport_options(CLI::App& app, TransportOptions& options);

// For CLI::Option::check(): returns an empty string if `text` is HOST:PORT, else the error.
std::string address_problem(const std::string& text);

}  // namespace ppmr
