// The identity that the peer of a connection has proved.
#pragma once

#include <string>
#include <string_view>

namespace ppmr {

// The purpose for which a node opens a connection. A shared key is bound to one role. A certificate
// does not name a role, so its role is kAny; its extended key usage separates nodes that connect
// from nodes that listen.
enum class PeerRole { kAny, kSource, kMigrate, kJobAgent };

// Returns the name of the role on the wire and in messages.
inline const char* to_string(PeerRole role) {
  switch (role) {
    case PeerRole::kSource:
      return "source";
    case PeerRole::kMigrate:
      return "migrate";
    case PeerRole::kJobAgent:
      return "job-agent";
    case PeerRole::kAny:
      break;
  }
  return "any";
}

struct PeerIdentity {
  static constexpr std::string_view kByCertificate = "tls-cert";
  enum class Method { kNone, kSharedKey, kCertificate };
  Method method = Method::kNone;
  // With a certificate: the DNS name in the peer's certificate that --allow-peer allows. With a
  // shared key: the host name that the peer bound its key to; every holder of a key can take any
  // name. Empty: the peer has not named itself.
  std::string name;
  PeerRole role = PeerRole::kAny;

  bool authenticated() const { return method != Method::kNone; }
  bool may_act_as(PeerRole wanted) const { return role == PeerRole::kAny || role == wanted; }
  // Returns the identity as `ppmr status` shows it: "tls-psk NAME", "tls-cert NAME", "none
  // (insecure)".
  std::string text() const {
    if (method == Method::kNone) return "none (insecure)";
    const std::string text(method == Method::kSharedKey ? "tls-psk" : kByCertificate);
    return name.empty() ? text : text + " " + name;
  }
  // Names the node that owns the checkpoints that it sends. The name is the same in each of the
  // node's roles. For a peer that has proved no identity, it is the name that the peer claims.
  std::string owner(std::string_view claimed_name) const {
    return authenticated() ? text() : text() + " " + std::string(claimed_name);
  }
  bool operator==(const PeerIdentity&) const = default;
};

// Returns whether an owner (PeerIdentity::owner()) has proved the name, and not only claimed it.
inline bool proves_its_name(std::string_view owner) {
  return owner.starts_with(PeerIdentity::kByCertificate);
}

// Returns why a peer that may not act as `wanted` is refused.
inline std::string wrong_role(const PeerIdentity& peer, PeerRole wanted) {
  return peer.text() + " has a key for the role '" + to_string(peer.role) + "' and acts as '" +
         to_string(wanted) + "'";
}

}  // namespace ppmr
