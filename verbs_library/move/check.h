// The answer to ppmr's request "check" (jobs/rdma_release.h): what would stop a release, and what
// the device of another machine must be able to do. Changes nothing.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "verbs_library/move/connection.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// Why a connected queue pair cannot be destroyed at all; empty: it can. The caller holds
// World::control.
std::string why_it_stays(Qp& qp);

// Asks each process to which this one is connected whether it answers. The callers hold
// World::control.
class Check {
 public:
  // `is_here`: the process has not released its devices. Else nothing hinders it, and it opens no
  // connection, which CRIU would have to move.
  Check(Time now, bool is_here);
  // Returns whether all peers have answered, or have had time enough.
  bool advance(Time now);
  // The text of the answer, once advance() has returned true.
  std::string answer() const;

 private:
  struct Question {
    ControlAddress to;
    std::string peer;  // "10.0.0.2, queue pair 17"
    Call call;
    bool is_done = false;
  };
  void look_at(Qp& qp);
  void ask(const EndFile& file, const EndId& mine, const EndId& peer, const std::string& name);

  Time limit_;
  std::list<Question> questions_;  // one for each process
  std::vector<std::string> hindrances_;
};

}  // namespace ppmr::verbs
