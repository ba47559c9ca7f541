// Finds the answer to ppmr's request "check" (jobs/rdma_release.h): what would stop a release, and
// what the device of another machine must be able to do. Releases nothing.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "verbs_library/move/connection.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// Returns why a connected queue pair can never be destroyed for a move; empty: it can, now or
// later. The caller holds World::control.
std::string why_it_stays(Qp& qp);

// One check. It sends a question to each process to which this one is connected, to find processes
// that do not answer. The callers hold World::control.
class Check {
 public:
  // `is_here`: false if the process has released its devices already. Then nothing can stop a
  // release, and this object opens no connections, which CRIU would have to move.
  Check(Time now, bool is_here);
  // Sends and receives what is possible now. Returns true when all peers have answered, or the time
  // limit has passed.
  bool advance(Time now);
  // Returns the text of the answer. Call it after advance() has returned true.
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
  std::list<Question> questions_;  // one for each peer process
  std::vector<std::string> hindrances_;
};

}  // namespace ppmr::verbs
