#pragma once

#include <string>

#include "rdma_stream/connection/credentials.h"

namespace ppmr {

struct DoctorCommand {
  std::string mountpoint;  // empty: all mounts
  std::string target;      // HOST:PORT; empty: that of the source mount `mountpoint`, if it is one
  Credentials credentials;
  std::string directory = "/etc/ppmr";
  bool json = false;

  int run() const;  // the exit code; kSuccess without a problem
};

}  // namespace ppmr
