// A certificate authority for tests, with a temporary directory that its destructor removes.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "rdma_stream/connection/credentials.h"

namespace ppmr {

struct CertificateRequest {
  std::string common_name;
  std::vector<std::string> dns_names;
  std::string extended_key_usage;  // "clientAuth" or "serverAuth"; empty: none
  int valid_from_seconds = -3600;  // seconds from now
  int valid_until_seconds = 3600;
};

// Threads: one.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "authority");
  ~TestAuthority();

  // Issues a certificate that this authority has signed, its key, and the certificate of the
  // authority.
  CertificateFiles issue(const CertificateRequest& request);
  // Makes a new list of revoked certificates, and returns its file.
  std::string revoke(const std::vector<CertificateFiles>& revoked, int valid_until_seconds = 3600);
  std::filesystem::path directory() const { return directory_; }

 private:
  using KeyPointer = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;
  using CertificatePointer = std::unique_ptr<X509, decltype(&::X509_free)>;

  CertificatePointer make(const CertificateRequest& request, EVP_PKEY* key, X509* issuer,
                          EVP_PKEY* issuer_key);

  std::filesystem::path directory_;
  int issued_ = 0;
  KeyPointer key_;
  CertificatePointer certificate_;
};

}  // namespace ppmr
