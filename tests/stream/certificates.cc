#include "tests/stream/certificates.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>

namespace ppmr {
namespace {

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

File open_file(const std::filesystem::path& path) {
  File file(std::fopen(path.c_str(), "w"), &std::fclose);
  assert(file);
  ::chmod(path.c_str(), 0600);
  return file;
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = ::X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  assert(extension != nullptr);
  ::X509_add_ext(certificate, extension, -1);
  ::X509_EXTENSION_free(extension);
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name)
    : key_(EVP_EC_gen("P-256"), &::EVP_PKEY_free), certificate_(nullptr, &::X509_free) {
  std::string path = (std::filesystem::temp_directory_path() / "ppmr-ca-XXXXXX").string();
  directory_ = ::mkdtemp(path.data());
  certificate_ = make({.common_name = name}, key_.get(), nullptr, key_.get());
}

TestAuthority::~TestAuthority() { std::filesystem::remove_all(directory_); }

TestAuthority::CertificatePointer TestAuthority::make(const CertificateRequest& request,
                                                      EVP_PKEY* key, X509* issuer,
                                                      EVP_PKEY* issuer_key) {
  CertificatePointer made(::X509_new(), &::X509_free);
  X509* certificate = made.get();
  ::X509_set_version(certificate, X509_VERSION_3);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), ++issued_);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), request.valid_from_seconds);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), request.valid_until_seconds);
  ::X509_set_pubkey(certificate, key);
  ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(request.common_name.data()),
                               static_cast<int>(request.common_name.size()), -1, 0);
  X509* signer = issuer != nullptr ? issuer : certificate;
  ::X509_set_issuer_name(certificate, ::X509_get_subject_name(signer));
  add_extension(certificate, signer, NID_basic_constraints,
                issuer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
  std::string names;
  for (const std::string& name : request.dns_names)
    names += (names.empty() ? "DNS:" : ",DNS:") + name;
  if (!names.empty()) add_extension(certificate, signer, NID_subject_alt_name, names);
  if (!request.extended_key_usage.empty()) {
    add_extension(certificate, signer, NID_ext_key_usage, request.extended_key_usage);
  }
  [[maybe_unused]] const int size = ::X509_sign(certificate, issuer_key, ::EVP_sha256());
  assert(size > 0);
  return made;
}

CertificateFiles TestAuthority::issue(const CertificateRequest& request) {
  const KeyPointer key(EVP_EC_gen("P-256"), &::EVP_PKEY_free);
  const auto certificate = make(request, key.get(), certificate_.get(), key_.get());
  const std::string prefix = (directory_ / std::to_string(issued_)).string();
  CertificateFiles files{prefix + ".crt", prefix + ".key", (directory_ / "ca.crt").string()};
  ::PEM_write_X509(open_file(files.certificate).get(), certificate.get());
  ::PEM_write_PrivateKey(open_file(files.private_key).get(), key.get(), nullptr, nullptr, 0,
                         nullptr, nullptr);
  ::PEM_write_X509(open_file(files.authority).get(), certificate_.get());
  return files;
}

std::string TestAuthority::revoke(const std::vector<CertificateFiles>& revoked,
                                  int valid_until_seconds) {
  const std::unique_ptr<X509_CRL, decltype(&::X509_CRL_free)> list(::X509_CRL_new(),
                                                                   &::X509_CRL_free);
  ::X509_CRL_set_version(list.get(), X509_CRL_VERSION_2);
  ::X509_CRL_set_issuer_name(list.get(), ::X509_get_subject_name(certificate_.get()));
  ASN1_TIME* time = ::X509_gmtime_adj(nullptr, -7200);
  ::X509_CRL_set1_lastUpdate(list.get(), time);
  for (const CertificateFiles& files : revoked) {
    const File file(std::fopen(files.certificate.c_str(), "r"), &std::fclose);
    const CertificatePointer certificate(::PEM_read_X509(file.get(), nullptr, nullptr, nullptr),
                                         &::X509_free);
    X509_REVOKED* entry = ::X509_REVOKED_new();
    ::X509_REVOKED_set_serialNumber(entry, ::X509_get_serialNumber(certificate.get()));
    ::X509_REVOKED_set_revocationDate(entry, time);
    ::X509_CRL_add0_revoked(list.get(), entry);
  }
  ::X509_gmtime_adj(time, valid_until_seconds);
  ::X509_CRL_set1_nextUpdate(list.get(), time);
  ::ASN1_TIME_free(time);
  [[maybe_unused]] const int size = ::X509_CRL_sign(list.get(), key_.get(), ::EVP_sha256());
  assert(size > 0);
  const std::string path = (directory_ / "ca.crl").string();
  ::PEM_write_X509_CRL(open_file(path).get(), list.get());
  return path;
}

}  // namespace ppmr
