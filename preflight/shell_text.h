// Judges a text for the shell: if a program that it runs is killed, does the shell start the
// program again?
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ppmr {

enum class StartsAgain {
  kNo,       // the text has no loop
  kPerhaps,  // the text has a loop, or is not understood
  kSurely,   // an endless loop runs the program, and nothing in the loop leaves it
};

// A running shell, as its command line describes it.
struct ShellCall {
  bool has_text = false;               // -c TEXT
  std::string text;                    // TEXT of -c
  std::string script;                  // path of the script; empty: none
  std::vector<std::string> arguments;  // $0, $1, ...
  bool ends_on_errors = false;         // -e
  // Whether the shell has neither a text nor a script: it reads its standard input.
  bool reads_input() const { return !has_text && script.empty(); }
};

// Parses the command line of a shell. `words`: the name of the shell comes first. Understands sh,
// dash, bash, ksh, zsh and busybox.
ShellCall parse_shell_call(const std::vector<std::string>& words);

// Returns whether `program` (the name of a file, without its directory) is the name of a shell that
// parse_shell_call() understands.
bool is_shell(std::string_view program);

// Judges a text. `names`: the names of the program, without directories: of its file, its process,
// its script. Understands the words of the shell's grammar only as far as loops require. Returns
// kPerhaps for a text that it does not understand.
StartsAgain judge_shell_text(std::string_view text, const ShellCall& call,
                             const std::vector<std::string>& names);

}  // namespace ppmr
