// A node's credentials, as given on the command line.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

struct CertificateFiles {
  std::string certificate;  // PEM: this node's certificate and intermediate ones
  std::string private_key;  // PEM, without a passphrase
  std::string authority;    // PEM: must have signed the certificate of a peer
};

struct Credentials {
  std::string key_file;
  CertificateFiles certificate;
  std::vector<std::string> allowed_peers;
  bool insecure = false;  // allow plain text to other machines
};

}  // namespace ppmr
