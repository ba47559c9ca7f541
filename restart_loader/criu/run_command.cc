#include "restart_loader/criu/run_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "restart_loader/criu/criu_process.h"

namespace ppmr {

Result<CommandOutput> run_command(const std::vector<std::string>& argv,
                                  std::chrono::milliseconds patience) {
  CommandOutput output;
  auto process = CriuProcess::start(
      {.argv = argv,
       .show = [&output](const std::string& line) { output.text += line + "\n"; },
       .background = true});
  if (!process) return failure(process.error());
  if (!(*process)->await_end(patience)) {
    return failure(ETIMEDOUT, fmt::format("{} did not end within {} s", fmt::join(argv, " "),
                                          patience.count() / 1000));
  }
  output.succeeded = (*process)->succeeded();
  output.ending = (*process)->how_it_ended();
  return output;
}

Result<std::string> run_successfully(const std::vector<std::string>& argv,
                                     std::chrono::milliseconds patience) {
  auto output = run_command(argv, patience);
  if (!output) return failure(output.error());
  if (output->succeeded) return output->text;
  while (output->text.ends_with('\n')) output->text.pop_back();
  return failure(ECHILD, fmt::format("{} {}: {}", fmt::join(argv, " "), output->ending,
                                     output->text.empty() ? "it printed no reason" : output->text));
}

}  // namespace ppmr
