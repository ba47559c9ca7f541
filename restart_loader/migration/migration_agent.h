// `ppmr migration-agent`: what a coordinator speaks with at the target, one JSON object a line over
// the socket that the daemon gives it. It keeps nothing in mind: all is in the records.
//
//   {"op":"preflight",...}                        what would stop a move, see preflight.h
//   {"op":"prepare","record":{...}}               the migration's record is written, restores begin
//   {"op":"look","id":ID,"version":V,"timeout_ms":T}   the record, once it is younger than V
//   {"op":"decide","id":ID,"state":"aborted"|"owned"|"running","error":TEXT}
#pragma once

#include <string>

namespace ppmr {

struct MigrationAgent {
  int fd = 3;
  std::string state_directory;
  std::string mountpoint;
  std::string peer;

  int run() const;  // until the socket ends
};

}  // namespace ppmr
