#pragma once

#include "jobs/agent/job_agent.h"

namespace ppmr {

// `ppmr job agent`.
struct AgentCommand {
  JobAgentOptions agent;
  Credentials credentials;
  std::string audit_file;
  std::string addresses;  // empty: default_address_range() chooses
  std::string bridge;
  int network_bits = 8;
  int mtu_bytes = 0;
  std::vector<std::string> shares{"/home"};
  std::string log_file;
  bool foreground = false;

  int run();
};

}  // namespace ppmr
