#include "daemon/command_line/credential_options.h"

#include <CLI/CLI.hpp>

namespace ppmr {

void add_credential_options(CLI::App& app, Credentials& credentials) {
  app.add_option("--key-file", credentials.key_file, "key shared by both sides, see ppmr keygen");
  app.add_option("--tls-cert", credentials.certificate.certificate,
                 "certificate of this node, with intermediate certificates (PEM)");
  app.add_option("--tls-key", credentials.certificate.private_key,
                 "private key of the certificate (PEM)");
  app.add_option("--tls-ca", credentials.certificate.authority,
                 "authority that signs the certificates of the peers (PEM)");
  app.add_option("--crl", credentials.revocation_list,
                 "certificates that the authority has revoked (PEM)");
  app.add_option("--allow-peer", credentials.allowed_peers,
                 "accept peers with this name only; can be repeated")
      // Each --allow-peer takes only one name, because the next argument may be the mount point.
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--insecure", credentials.insecure,
               "allow plain text without authentication, also to other machines");
  app.add_flag("--trusted-fabric", credentials.trusted_fabric,
               "send and receive data without encryption, if the other side allows it, too");
}

void add_audit_option(CLI::App& app, std::string& file) {
  app.add_option("--audit-file", file,
                 "also append the audit trail to this file, one JSON object per line");
}

}  // namespace ppmr
