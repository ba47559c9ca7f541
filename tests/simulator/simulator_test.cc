#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "tests/simulator/world.h"

namespace ppmr::simulator {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::string told(const Scenario& scenario, const Rules& rules = {}) {
  const Verdict verdict = play(scenario, rules, true);
  std::string text =
      "seed " + std::to_string(scenario.seed) + ", " + std::to_string(scenario.trees) + " trees\n";
  for (const std::string& line : verdict.history) text += "  " + line + "\n";
  return text + verdict.violation + "\n";
}

TEST(Simulator, NoHistoryLosesOrDoublesATree) {
  const uint64_t only = number_from("PPMR_SEED", 0);
  const uint64_t first = only != 0 ? only : 1;
  const uint64_t count = only != 0 ? 1 : number_from("PPMR_HISTORIES", 10'000);
  std::map<std::string, uint64_t> endings;
  uint64_t steps = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Scenario scenario = Scenario::random(seed);
    const Verdict verdict = play(scenario);
    ASSERT_EQ(verdict.violation, "") << told(scenario);
    ++endings[verdict.ending];
    steps += verdict.steps;
  }
  if (only != 0) std::cout << told(Scenario::random(only));
  std::cout << count << " histories, " << steps << " steps\n";
  for (const auto& [ending, times] : endings) std::cout << times << "  " << ending << "\n";
}

}  // namespace
}  // namespace ppmr::simulator
