#include "cli/doctor/credential_checks.h"

#include <fmt/format.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "cli/screen/counted.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {
namespace {

constexpr int64_t kSecondsPerDay = 86'400;
constexpr int64_t kWarningDays = 30;
constexpr mode_t kGroupAndOthers = 0077;

using BioPointer = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using CertificatePointer = std::unique_ptr<X509, decltype(&::X509_free)>;

// The message of secret_file.h names the file and the fault, but not the purpose of the file.
Diagnosis unusable(const std::string& check, const std::string& what, const Error& error) {
  return problem(check, fmt::format("{} cannot be used: {}", what, error.message),
                 error.errno_value == EPERM
                     ? "Change the owner and the mode of the file as the message says"
                     : "Name the right file, or create a new one");
}

Diagnosis check_key_file(const std::string& path) {
  const auto keys = read_key_file(path);
  if (!keys) return unusable("key", "the key file", keys.error());
  const bool changing = keys->size() > 1;
  return ok("key", fmt::format("the key file {} is protected; it holds the key {}{}", path,
                               key_id(keys->front()),
                               changing ? " and a second one, which peers may still use" : ""));
}

// Returns the seconds from `now` (in seconds since 1970) to `time`; negative: `time` is past.
int64_t seconds_until(const ASN1_TIME* time, int64_t now) {
  const std::unique_ptr<ASN1_TIME, decltype(&::ASN1_TIME_free)> from(ASN1_TIME_set(nullptr, now),
                                                                     &::ASN1_TIME_free);
  int days = 0;
  int seconds = 0;
  if (!from || ASN1_TIME_diff(&days, &seconds, from.get(), time) != 1) return 0;
  return int64_t{days} * kSecondsPerDay + seconds;
}

Diagnosis check_validity(const std::string& what, const std::string& path, const ASN1_TIME* begin,
                         const ASN1_TIME* end, int64_t now) {
  const std::string named = fmt::format("the {} {}", what, path);
  const int64_t left = seconds_until(end, now);
  if (left < 0) {
    return problem("certificate",
                   fmt::format("{} expired {} ago", named, counted(-left / kSecondsPerDay, "day")),
                   "Issue a new one, and send SIGHUP to the daemons");
  }
  if (seconds_until(begin, now) > 0) {
    return problem("certificate", fmt::format("{} is not valid yet", named),
                   "Check the clock of this node, or wait");
  }
  const std::string message =
      fmt::format("{} expires in {}", named, counted(left / kSecondsPerDay, "day"));
  if (left < kWarningDays * kSecondsPerDay) {
    return warning("certificate", message, "Issue a new one, and send SIGHUP to the daemons");
  }
  return ok("certificate", message);
}

void check_certificates(const std::string& what, const std::string& path, int64_t now,
                        Diagnoses& found) {
  const auto text = read_public_file(path);
  if (!text) return found.push_back(unusable("certificate", "the " + what, text.error()));
  const BioPointer bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())), &::BIO_free);
  int count = 0;
  for (;; ++count) {  // a file may also hold intermediate certificates
    const CertificatePointer certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr),
                                         &::X509_free);
    if (!certificate) break;
    found.push_back(check_validity(what, path, X509_get0_notBefore(certificate.get()),
                                   X509_get0_notAfter(certificate.get()), now));
  }
  if (count == 0) {
    found.push_back(problem("certificate",
                            fmt::format("the {} {} holds no certificate", what, path),
                            "Name a file in the PEM format"));
  }
}

void check_revocation_lists(const std::string& path, int64_t now, Diagnoses& found) {
  const std::string what = "revocation list";
  const auto text = read_public_file(path);
  if (!text) return found.push_back(unusable("certificate", "the " + what, text.error()));
  const BioPointer bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())), &::BIO_free);
  int count = 0;
  for (;; ++count) {
    const std::unique_ptr<X509_CRL, decltype(&::X509_CRL_free)> list(
        PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr), &::X509_CRL_free);
    if (!list) break;
    if (const ASN1_TIME* end = X509_CRL_get0_nextUpdate(list.get()); end != nullptr) {
      found.push_back(check_validity(what, path, X509_CRL_get0_lastUpdate(list.get()), end, now));
    }
  }
  if (count > 0) return;
  found.push_back(problem("certificate", fmt::format("the {} {} holds no list", what, path),
                          "Name a file in the PEM format (`openssl ca -gencrl`)"));
}

}  // namespace

Diagnoses check_credentials(const Credentials& credentials, int64_t now) {
  Diagnoses found;
  if (!credentials.key_file.empty()) found.push_back(check_key_file(credentials.key_file));
  const CertificateFiles& files = credentials.certificate;
  if (!files.certificate.empty()) check_certificates("certificate", files.certificate, now, found);
  if (!files.authority.empty()) {
    check_certificates("certificate of the authority", files.authority, now, found);
  }
  if (!credentials.revocation_list.empty()) {
    check_revocation_lists(credentials.revocation_list, now, found);
  }
  if (!files.private_key.empty()) {
    const auto secret = read_secret_file(files.private_key, kGroupAndOthers);
    found.push_back(
        secret ? ok("key", fmt::format("the private key {} is protected", files.private_key))
               : unusable("key", "the private key", secret.error()));
  }
  return found;
}

}  // namespace ppmr
