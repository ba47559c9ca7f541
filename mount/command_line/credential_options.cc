#include "mount/command_line/credential_options.h"

#include <CLI/CLI.hpp>

namespace ppmr {

void add_credential_options(CLI::App& app, Credentials& credentials) {
  app.add_option("--key-file", credentials.key_file,
                 "the key that both sides share (ppmr keygen makes it)");
  app.add_option("--tls-cert", credentials.certificate.certificate,
                 "this node's certificate and those between it and the authority (PEM)");
  app.add_option("--tls-key", credentials.certificate.private_key, "its private key (PEM)");
  app.add_option("--tls-ca", credentials.certificate.authority,
                 "the authority that signs the certificates of the peers (PEM)");
  app.add_option("--allow-peer", credentials.allowed_peers,
                 "DNS name or common name of a certificate to let in; may be given several times")
      ->allow_extra_args(false)  // what follows may be the mount point
      ->take_all();
  app.add_flag("--insecure", credentials.insecure,
               "plain text and no proof of who is there, also beyond this machine");
}

}  // namespace ppmr
