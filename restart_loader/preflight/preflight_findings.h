// What the parts of the preflight share: findings as they are collected, and the parts themselves.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "restart_loader/preflight/preflight.h"

namespace ppmr {

inline constexpr int kCapSysAdmin = 21, kCapSysResource = 24;  // linux/capability.h

// Those that stop the move first; each told once.
class Findings {
 public:
  void stop(std::string sentence, std::string remedy) {
    add({Severity::kStops, std::move(sentence), std::move(remedy)});
  }
  void warn(std::string sentence, std::string remedy = "") {
    add({Severity::kWarns, std::move(sentence), std::move(remedy)});
  }
  void add(Finding finding) {
    if (told_.insert(finding.sentence).second) findings_.push_back(std::move(finding));
  }
  std::vector<Finding> take() {
    std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
      return a.severity == Severity::kStops && b.severity != Severity::kStops;
    });
    return std::move(findings_);
  }

 private:
  std::set<std::string> told_;
  std::vector<Finding> findings_;
};

// The first few of many alike, by name.
template <typename Item>
std::string list_of(const std::vector<Item>& items) {
  constexpr size_t kNamed = 8;
  const size_t shown = std::min(items.size(), kNamed);
  std::string text = fmt::format("{}", fmt::join(items.begin(), items.begin() + shown, ", "));
  if (items.size() > shown) text += fmt::format(" and {} more", items.size() - shown);
  return text;
}

void check_privileges(const TreeFacts& tree, const NodeFacts& node, const std::string& where,
                      Severity severity, Findings& findings);
// Of one tree: what stops its dump (preflight_tree.cc).
void check_tree(const MoveOptions& options, const TreeFacts& tree, Findings& findings);
// Of a tree that is a container (preflight_container.cc).
void check_container(const TreeFacts& tree, Findings& findings);
void check_container_at_target(const TreeFacts& tree, const ContainerAnswer& answer,
                               Findings& findings);
// What has to be the same, or free, at the target (preflight_target.cc).
void check_answers(const std::vector<TreeFacts>& trees, const PreflightQuestions& questions,
                   const PreflightAnswers& answers, Findings& findings);

}  // namespace ppmr
