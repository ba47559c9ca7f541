// One request for many trees that move separately: asks the target about each pid, file and address
// once, and gives every tree the answers to its own questions.
#pragma once

#include <vector>

#include "preflight/preflight.h"

namespace ppmr {

class SharedQuestions {
 public:
  // `each`: the questions of each tree. There must be at least one.
  explicit SharedQuestions(std::vector<PreflightQuestions> each);

  const PreflightQuestions& all() const { return all_; }
  const PreflightQuestions& of(size_t tree) const { return each_[tree]; }
  // Returns the answers to of(tree), from the answers to all(). A problem with the restart policy
  // is in the answers of every tree: the target does not report which processes it refuses.
  PreflightAnswers answers_for(size_t tree, const PreflightAnswers& answers) const;

 private:
  std::vector<PreflightQuestions> each_;
  PreflightQuestions all_;
  std::vector<std::vector<size_t>> files_;  // for each file of a tree, its place in all_.files
  std::vector<size_t> first_container_;     // for each tree, its first place in all_.containers
};

}  // namespace ppmr
