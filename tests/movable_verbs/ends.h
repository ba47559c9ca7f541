// Starts two checkers over the stub device, and sends ppmr's requests to them. For verbs, each
// checker is on a machine of its own.
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

// A directory below /tmp, which the destructor removes with its contents. Its path is short,
// because it contains sockets.
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

// One end: a process, which the destructor kills.
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
  void stop() const;  // returns when all threads of the process are stopped
  // release() and resume() return "ok" or the error. Between the two, put_on() may put the process
  // on another machine.
  std::string release() const { return ask("release"); }
  std::string resume() const { return ask("resume"); }
  // Returns the answer of the process to a preflight. Without an answer the test fails.
  RdmaCheck check() const;
  // `room`: how many objects the device of the machine can make; -1: more than a test needs.
  void put_on(int machine, int room = -1) const;

  uint64_t rounds() const;
  // Waits until the process has done this many further rounds.
  void await_rounds(uint64_t more) const;
  bool has_ended() const;
  // Waits for the end of the process. Returns its exit code, or the negative number of the signal
  // that ended it.
  int wait();
  std::string output() const;
  std::string log() const;

 private:
  std::string ask(const std::string& request) const;

  const Scratch& scratch_;
  const std::string name_, exchange_;
  pid_t pid_ = -1;
};

// The two ends of most tests: "a" on machine 1, "b" on machine 2.
class Ends {
 public:
  explicit Ends(const std::vector<std::string>& options = {}, const Environment& environment = {});

  // Ends the traffic, waits for both ends, and expects that they found no error.
  void finish();

  Scratch scratch;
  std::unique_ptr<End> a, b;
};

// Waits up to 60 s for the condition. If it stays false, the test fails.
void await(const std::string& what, const std::function<bool()>& condition);

void touch(const std::string& path);

}  // namespace ppmr::verbs
