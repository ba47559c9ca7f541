#include "daemon/command_line/command_error.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "daemon/command_line/terminal_style.h"

namespace ppmr {

int report(const std::string& command, const CommandError& error, bool json) {
  const std::string who = command.empty() ? "ppmr" : "ppmr " + command;
  print_error(who, error.message);
  print_manual_section(who, error.exit_code);
  if (json) {
    const nlohmann::json object = {
        {"ok", false}, {"exit_code", to_int(error.exit_code)}, {"error", error.message}};
    std::puts(json_text(object).c_str());
  }
  return to_int(error.exit_code);
}

}  // namespace ppmr
