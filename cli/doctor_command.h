#pragma once

#include <string>

#include "rdma_stream/connection/credentials.h"

namespace ppmr {

struct DoctorCommand {
  std::string mountpoint;  // empty: all mounts
  // HOST:PORT. Empty: the target of the mount `mountpoint`, if that is a source mount.
  std::string target;
  Credentials credentials;
  std::string directory = "/etc/ppmr";
  bool json = false;

  int run() const;  // returns the exit code; kSuccess if there is no problem
};

}  // namespace ppmr
