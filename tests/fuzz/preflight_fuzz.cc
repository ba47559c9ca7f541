// The preflight: questions at the target, answers at the source.
#include <nlohmann/json.hpp>

#include "base/parse_json.h"
#include "preflight/preflight.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  const nlohmann::json message = parse_json(text_of(input));
  if (const auto questions = parse_questions(message)) {
    const auto again = parse_questions(to_request(*questions));
    REQUIRE(again && to_request(*again) == to_request(*questions));
  }
  PreflightQuestions asked;
  asked.files.resize(1);
  asked.containers.resize(1);
  if (const auto answers = read_answers(message, asked)) {
    TreeFacts tree;
    tree.root = 1;
    (void)check_move({}, answers->node, {tree}, asked, *answers);
  }
}
