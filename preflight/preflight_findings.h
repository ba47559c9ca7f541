// Internal to the preflight: the collection of findings, and the checks that add to it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "preflight/preflight.h"

namespace ppmr {

// Findings, sorted by severity and without duplicates.
class Findings {
 public:
  void stop(std::string sentence, std::string remedy) {
    add({Severity::kStops, std::move(sentence), std::move(remedy)});
  }
  void warn(std::string sentence, std::string remedy = "") {
    add({Severity::kWarns, std::move(sentence), std::move(remedy)});
  }
  void add(Finding finding) {
    if (sentences_.insert(finding.sentence).second) findings_.push_back(std::move(finding));
  }
  std::vector<Finding> take() {
    std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
      return a.severity == Severity::kStops && b.severity != Severity::kStops;
    });
    return std::move(findings_);
  }

 private:
  std::set<std::string> sentences_;
  std::vector<Finding> findings_;
};

void check_privileges(const TreeFacts& tree, const NodeFacts& node, const std::string& where,
                      Severity severity, Findings& findings);
// Adds findings about what stops the dump of a tree (preflight_tree.cc).
void check_tree(const MoveOptions& options, const TreeFacts& tree, Findings& findings);
// Adds findings about programs that would start the tree again here after the move
// (preflight_manager.cc).
void check_managers(const MoveOptions& options, const TreeFacts& tree, Findings& findings);
// Adds the findings for a tree that is a container (preflight_container.cc).
void check_container(const TreeFacts& tree, Findings& findings);
void check_container_at_target(const TreeFacts& tree, const ContainerAnswer& answer,
                               Findings& findings);
// Adds a finding for everything that the target lacks, already uses, or has in another version
// (preflight_target.cc).
void check_answers(const MoveOptions& options, const std::vector<TreeFacts>& trees,
                   const PreflightQuestions& questions, const PreflightAnswers& answers,
                   Findings& findings);

}  // namespace ppmr
