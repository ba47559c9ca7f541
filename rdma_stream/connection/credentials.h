// What a node can show of itself, as the command line names it.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

struct CertificateFiles {
  std::string certificate;  // PEM: this node's, and those between it and the authority's
  std::string private_key;  // PEM, without a passphrase
  std::string authority;    // PEM: whose signature makes a peer's certificate valid
};

struct Credentials {
  std::string key_file;
  CertificateFiles certificate;
  std::vector<std::string> allowed_peers;
  bool insecure = false;  // plain text, also beyond this machine
};

}  // namespace ppmr
