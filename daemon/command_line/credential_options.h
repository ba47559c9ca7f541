// The options for authentication and encryption, which are the same for both daemons.
#pragma once

#include "rdma_stream/connection/security.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds --key-file, --tls-cert, --tls-key, --tls-ca, --crl, --allow-peer, --insecure and
// --trusted-fabric.
// Security::load() checks their combination.
void add_credential_options(CLI::App& app, Credentials& credentials);
void add_audit_option(CLI::App& app, std::string& file);

}  // namespace ppmr
