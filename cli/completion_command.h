#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Returns the completion script of `shell` ("bash", "zsh" or "fish") for all commands and options
// of `app`, except internal ones. Empty for any other shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace ppmr
