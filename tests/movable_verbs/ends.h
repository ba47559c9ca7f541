// Two checkers over the stub device, each on a machine of its own as far as verbs can tell, and the
// requests of ppmr to them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "preflight/rdma_release/rdma_check.h"

namespace ppmr::verbs {

// A directory below /tmp that is removed with its contents. Short: sockets live in it.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::string path(const std::string& name) const { return home_ + "/" + name; }
  // Directories that all machines share.
  std::string fabric() const { return path("fabric"); }
  std::string directory() const { return path("directory"); }

 private:
  std::string home_;
};

using Environment = std::map<std::string, std::string>;

// One end: a process that is killed with this object.
class End {
 public:
  // `exchange`: the directory in which this end meets its partner.
  End(const Scratch& scratch, const std::string& name, const std::string& partner,
      const std::string& exchange, int machine, const std::vector<std::string>& options,
      const Environment& environment);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  void stop() const;  // returns when all its threads stand still
  // Both answer "ok" or the error. Between them the process may be put on another machine.
  std::string release() const { return ask("release"); }
  std::string resume() const { return ask("resume"); }
  // What it says to a preflight. Reports a failure of the test if it does not answer.
  RdmaCheck check() const;
  // `room`: how many objects the device of the machine can make; -1: as many as it is asked for.
  void put_on(int machine, int room = -1) const;

  uint64_t rounds() const;
  // Waits until further rounds are done: events only, within a generous limit.
  void await_rounds(uint64_t more) const;
  // Waits for the end of the process; returns its exit code, or minus the signal.
  int wait();
  std::string output() const;
  std::string log() const;

 private:
  std::string ask(const std::string& request) const;

  const Scratch& scratch_;
  const std::string name_, exchange_;
  pid_t pid_ = -1;
};

// The usual pair: "a" on machine 1, "b" on machine 2.
class Ends {
 public:
  explicit Ends(const std::vector<std::string>& options = {}, const Environment& environment = {});

  // Lets both come to an end, and expects that everything was right.
  void finish();

  Scratch scratch;
  std::unique_ptr<End> a, b;
};

// Waits up to 60 s, and reports a failure of the test if the condition does not come true.
void await(const std::string& what, const std::function<bool()>& condition);

void touch(const std::string& path);

}  // namespace ppmr::verbs
