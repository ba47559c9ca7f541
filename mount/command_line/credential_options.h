// The options by which every daemon and command says how it speaks with other nodes.
#pragma once

#include "rdma_stream/connection/security.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// --key-file, --tls-cert, --tls-key, --tls-ca, --allow-peer, --insecure. Whether they fit together
// is Security::load()'s to say.
void add_credential_options(CLI::App& app, Credentials& credentials);

}  // namespace ppmr
