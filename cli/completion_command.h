#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// The completion script of `shell` ("bash", "zsh" or "fish") for all commands and options of
// `app`, except internal ones. Empty for another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace ppmr
