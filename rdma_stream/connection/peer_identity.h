// Who the peer of a connection proved to be.
#pragma once

#include <string>

namespace ppmr {

struct PeerIdentity {
  enum class Method { kNone, kSharedKey, kCertificate };
  Method method = Method::kNone;
  // The name in the peer's certificate that --allow-peer allows. Empty with a shared key, which
  // does not distinguish peers.
  std::string name;

  bool authenticated() const { return method != Method::kNone; }
  // As `ppmr status` shows it: "tls-psk", "tls-cert NAME", "none (insecure)".
  std::string text() const {
    switch (method) {
      case Method::kSharedKey:
        return "tls-psk";
      case Method::kCertificate:
        return "tls-cert " + name;
      case Method::kNone:
        break;
    }
    return "none (insecure)";
  }
  bool operator==(const PeerIdentity&) const = default;
};

}  // namespace ppmr
