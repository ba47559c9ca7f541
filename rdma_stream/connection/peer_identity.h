// Who the other side of a connection has proved to be.
#pragma once

#include <string>

namespace ppmr {

struct PeerIdentity {
  enum class Method { kNone, kSharedKey, kCertificate };
  Method method = Method::kNone;
  // The name of its certificate that --allow-peer lets in; with a shared key there are no names:
  // all who have it are equal.
  std::string name;

  bool authenticated() const { return method != Method::kNone; }
  // As `ppmr status` has it: "tls-psk", "tls-cert NAME", "none (insecure)".
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
