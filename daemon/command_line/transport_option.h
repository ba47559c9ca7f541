// The transport options of both daemons: --transport, --device, --gid-index.
#pragma once

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

}  // namespace ppmr
