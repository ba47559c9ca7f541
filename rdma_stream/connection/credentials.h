// A node's credentials, from the command line.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

struct CertificateFiles {
  std::string certificate;  // PEM: this node's certificate and intermediate certificates
  std::string private_key;  // PEM, without a passphrase
  std::string authority;    // PEM: the authority that must have signed a peer's certificate
};

struct Credentials {
  std::string key_file;
  CertificateFiles certificate;
  std::string revocation_list;  // PEM: revoked certificates of the authority; empty: none
  std::vector<std::string> allowed_peers;
  std::string target_name;      // the only target to connect to; empty: any allowed peer
  bool insecure = false;        // allow plain text to other machines
  bool trusted_fabric = false;  // data needs no encryption if the peer agrees
};

}  // namespace ppmr
