// Fuzzes the preflight: questions at the target, answers at the source, and what other users write
// at the source: scripts, control groups, configurations of service managers.
#include <nlohmann/json.hpp>

#include "base/json_message.h"
#include "base/parse_json.h"
#include "preflight/preflight.h"
#include "preflight/shell_text.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  const std::string text = text_of(input);
  const ShellCall call = parse_shell_call(split_command_line(text));
  (void)judge_shell_text(text, call, {"server"});
  REQUIRE(find_unit(text).name.size() < 256);
  UnitFacts unit;
  parse_unit_properties(text, unit);
  REQUIRE(unit.triggers.size() <= 32);
  (void)judge_restart(unit, true);
  (void)parse_active_units(text);
  (void)find_autorestart(text, "server");
  (void)find_includes(text);
  (void)parse_service_status(text);
  (void)is_waiting_for_children(text);
  const nlohmann::json message = parse_json(text_of(input));
  const auto request = read_one<PreflightRequest>(message);
  if (const auto questions = parse_questions(request.value_or(PreflightRequest{}))) {
    const nlohmann::json same = make_request(*questions).questions;
    const auto again = parse_questions(make_request(*questions));
    REQUIRE(again && make_request(*again).questions == same);
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
