// Splits the text into words and operators, and finds the commands of each loop. A loop surely
// starts the program again if its condition stays true when the program is killed, a command in it
// names the program, and no command in it can leave the loop.
//
// Rejected: the answer kSurely for each text with a loop and the name of the program. Scripts that
// prepare something in a loop and then run a server are common, and must not stop its move.
#include "preflight/shell_text.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

namespace ppmr {
namespace {

// Any user can write a text. These limits bound the time to judge it.
constexpr size_t kTextMaxBytes = 64 << 10;
constexpr size_t kNestedLoopsMax = 16;
constexpr size_t kExpandedWordsMax = 64;

constexpr std::array<std::string_view, 9> kShells = {"sh",  "dash",  "bash", "rbash", "ash",
                                                     "ksh", "ksh93", "mksh", "zsh"};
// Commands that leave a loop, or change what the shell does when a command fails.
const std::set<std::string_view> kLeave = {"break", "exit", "return", "exec", "set", "eval"};
const std::set<std::string_view> kTrue = {"true", ":", "/bin/true", "/usr/bin/true", "sleep"};

std::string base_name(std::string_view path) {
  return std::string(
      path.substr(path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/') + 1));
}

struct Token {
  enum Kind { kWord, kOperator } kind = kWord;
  std::string text;     // a word has no quotes here
  bool quoted = false;  // a quoted word is no keyword
};

// Splits a text into tokens.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) take_token();
    end_word();
    return std::move(tokens_);
  }
  bool understood() const { return understood_; }

 private:
  char next(size_t distance = 1) const {
    return at_ + distance < text_.size() ? text_[at_ + distance] : '\0';
  }
  void end_word() {
    if (in_word_) tokens_.push_back({Token::kWord, std::move(word_), quoted_});
    word_.clear();
    in_word_ = quoted_ = false;
  }
  void add_operator(std::string text) {
    end_word();
    at_ += text.size();
    tokens_.push_back({Token::kOperator, std::move(text)});
  }
  void take(size_t count = 1) {
    in_word_ = true;
    word_ += text_.substr(at_, count);
    at_ += count;
  }
  void take_token();
  void take_quoted(char quote);
  void take_nested(char open, char close);
  void skip_redirection();

  std::string_view text_;
  size_t at_ = 0;
  std::string word_;
  bool in_word_ = false, quoted_ = false, understood_ = true;
  std::vector<Token> tokens_;
};

void Lexer::take_token() {
  const char c = text_[at_];
  if (c == ' ' || c == '\t' || c == '\r') {
    end_word();
    ++at_;
  } else if (c == '#' && !in_word_) {
    at_ = std::min(text_.find('\n', at_), text_.size());
  } else if (c == '\\') {
    ++at_;
    if (at_ < text_.size() && text_[at_] != '\n') {
      quoted_ = true;
      take();
    } else if (at_ < text_.size()) {
      ++at_;  // the line goes on
    }
  } else if (c == '\'' || c == '"') {
    take_quoted(c);
  } else if (c == '`') {
    understood_ = false;
    take();
  } else if (c == '$' && next() == '(') {
    take();
    take_nested('(', ')');
  } else if (c == '$' && next() == '{') {
    take();
    take_nested('{', '}');
  } else if (c == '(' && next() == '(' && !in_word_) {
    take_nested('(', ')');  // arithmetic, one word: "((;;))"
  } else if (c == '<' || c == '>') {
    skip_redirection();
  } else if (c == '&' && next() == '>') {
    end_word();
    ++at_;
    skip_redirection();
  } else if ((c == '&' || c == '|' || c == ';') && next() == c) {
    add_operator(std::string(2, c));
  } else if (std::string_view("&|;()\n").find(c) != std::string_view::npos) {
    add_operator(std::string(1, c));
  } else {
    take();
  }
}

void Lexer::take_quoted(char quote) {
  in_word_ = quoted_ = true;
  for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
    const bool escapes = quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size();
    if (escapes) ++at_;
    word_ += text_[at_];
  }
  if (at_ == text_.size()) understood_ = false;  // the closing quote is missing
  ++at_;
}

void Lexer::take_nested(char open, char close) {
  int depth = 0;
  do {
    if (at_ >= text_.size()) {
      understood_ = false;
      return;
    }
    depth += text_[at_] == open ? 1 : 0;
    depth -= text_[at_] == close ? 1 : 0;
    take();
  } while (depth > 0);
}

// Skips the operator and its file, which is not a word of the command.
void Lexer::skip_redirection() {
  // In "2>file" the word so far is the number of a descriptor.
  const bool number = in_word_ && std::all_of(word_.begin(), word_.end(),
                                              [](char c) { return '0' <= c && c <= '9'; });
  if (number) word_.clear(), in_word_ = quoted_ = false;
  end_word();
  if (text_[at_] == '<' && next() == '<') understood_ = false;  // a here-document
  while (at_ < text_.size() && std::string_view("<>&|-").find(text_[at_]) != std::string_view::npos)
    ++at_;
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  const size_t known = tokens_.size();
  while (at_ < text_.size() &&
         std::string_view(" \t\n;&|()<>").find(text_[at_]) == std::string_view::npos)
    take_token();
  end_word();
  tokens_.resize(std::min(tokens_.size(), known));
}

using Words = std::vector<std::string>;

struct Command {
  Words words;
  int depth = 0;  // number of subshells, "( )", around it
};

struct Loop {
  std::string keyword;  // "while", "until", "for", "select"
  int depth = 0;
  std::vector<Command> condition, body;
  bool in_body = false;
};

// Finds the loops of a text. Commands of an inner loop belong to the outer loops, too.
class LoopFinder {
 public:
  explicit LoopFinder(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  void run() {
    for (const Token& token : tokens_) {
      if (token.kind == Token::kOperator) {
        end_command();
        if (token.text == "(") ++depth_;
        // A ")" without "(" ends a pattern of `case`.
        if (token.text == ")" && depth_ > 0) --depth_;
      } else if (!command_.empty() || token.quoted || !take_keyword(token.text)) {
        take_word(token);
      }
    }
    end_command();
    if (!open_.empty()) understood_ = false;
  }
  const std::vector<Loop>& loops() const { return loops_; }
  const std::vector<Command>& commands() const { return commands_; }
  const std::map<std::string, std::string>& variables() const { return variables_; }
  bool understood() const { return understood_; }

 private:
  bool take_keyword(const std::string& word);
  void take_word(const Token& token);
  void end_command();

  std::vector<Token> tokens_;
  Words command_;
  int depth_ = 0;
  std::vector<size_t> open_;  // loops without their `done` so far, outer loops first
  std::vector<Loop> loops_;
  std::vector<Command> commands_;
  std::map<std::string, std::string> variables_;  // VAR=VALUE
  bool understood_ = true;
};

bool LoopFinder::take_keyword(const std::string& word) {
  static const std::set<std::string_view> kSkipped = {"if", "then", "else", "elif",
                                                      "fi", "{",    "}",    "time"};
  if (word == "while" || word == "until" || word == "for" || word == "select") {
    if (open_.size() == kNestedLoopsMax) {
      understood_ = false;
      return true;
    }
    open_.push_back(loops_.size());
    loops_.push_back({.keyword = word, .depth = depth_, .condition = {}, .body = {}});
    return true;
  }
  if (word == "do" || word == "done") {
    if (open_.empty()) {
      understood_ = false;
    } else if (word == "do") {
      loops_[open_.back()].in_body = true;
    } else {
      open_.pop_back();
    }
    return true;
  }
  return kSkipped.contains(word);
}

void LoopFinder::take_word(const Token& token) {
  const size_t equals = token.text.find('=');
  const bool is_name =
      equals != std::string::npos && equals > 0 &&
      std::all_of(token.text.begin(), token.text.begin() + static_cast<long>(equals),
                  [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  if (command_.empty() && is_name) {
    variables_[token.text.substr(0, equals)] = token.text.substr(equals + 1);
    return;
  }
  command_.push_back(token.text);
}

void LoopFinder::end_command() {
  if (command_.empty()) return;
  for (const size_t loop : open_) {
    Loop& outer = loops_[loop];
    (outer.in_body ? outer.body : outer.condition).push_back({command_, depth_});
  }
  commands_.push_back({std::move(command_), depth_});
  command_.clear();
}

// Replaces "$NAME", "${NAME}", "$1" and "$@".
Words expand(const Words& command, const std::map<std::string, std::string>& variables,
             const std::vector<std::string>& arguments) {
  Words expanded;
  for (const std::string& word : command) {
    if (expanded.size() >= kExpandedWordsMax) break;
    std::string name = word.starts_with('$') ? word.substr(1) : "";
    if (name.starts_with('{') && name.ends_with('}')) name = name.substr(1, name.size() - 2);
    const auto variable = variables.find(name);
    if (name == "@" || name == "*") {
      for (size_t i = 1; i < arguments.size() && expanded.size() < kExpandedWordsMax; ++i)
        expanded.push_back(arguments[i]);
    } else if (name.size() == 1 && name[0] >= '0' && name[0] <= '9') {
      const size_t index = static_cast<size_t>(name[0] - '0');
      if (index < arguments.size()) expanded.push_back(arguments[index]);
    } else if (variable != variables.end()) {
      std::istringstream words(variable->second);
      for (std::string part; expanded.size() < kExpandedWordsMax && words >> part;)
        expanded.push_back(part);
    } else {
      expanded.push_back(word);
    }
  }
  return expanded;
}

class Judgement {
 public:
  Judgement(const LoopFinder& finder, const ShellCall& call, const std::vector<std::string>& names)
      : finder_(finder), call_(call), names_(names) {}

  bool starts_surely(const Loop& loop) const {
    const bool in_condition = std::any_of(loop.condition.begin(), loop.condition.end(),
                                          [&](const Command& c) { return runs_program(c); });
    const bool in_body = std::any_of(loop.body.begin(), loop.body.end(),
                                     [&](const Command& c) { return runs_program(c); });
    if (!in_condition && !in_body) return false;
    for (const auto* commands : {&loop.condition, &loop.body}) {
      for (const Command& command : *commands) {
        if (can_leave(command, loop)) return false;
      }
    }
    return is_endless(loop, in_condition);
  }
  bool ends_on_errors() const {
    if (call_.ends_on_errors) return true;
    const auto& commands = finder_.commands();
    return std::any_of(commands.begin(), commands.end(), [](const Command& command) {
      // "set -e", "trap 'exit 1' CHLD"
      const Words& words = command.words;
      return words.front() == "set" || (words.front() == "trap" && words.size() > 2 &&
                                        words.back() != "INT" && words.back() != "TERM");
    });
  }

 private:
  bool runs_program(const Command& command) const {
    const Words words = expand(command.words, finder_.variables(), call_.arguments);
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return std::find(names_.begin(), names_.end(), base_name(word)) != names_.end();
    });
  }
  // A command in a subshell inside of the loop leaves only the subshell.
  static bool can_leave(const Command& command, const Loop& loop) {
    return command.depth <= loop.depth && kLeave.contains(command.words.front());
  }
  // Returns whether the loop goes on when the program was killed, which is a failure for the shell.
  static bool is_endless(const Loop& loop, bool program_in_condition) {
    if (loop.condition.size() != 1) return false;
    const Words& condition = loop.condition.front().words;
    const std::string& first = condition.front();
    const bool negated = first == "!";
    if (loop.keyword == "for")
      return first.starts_with("((") && first.find(";;") != std::string::npos;
    if (program_in_condition)
      return (loop.keyword == "until" && !negated) || (loop.keyword == "while" && negated);
    if (loop.keyword == "until") return first == "false" || first == "/bin/false";
    if (loop.keyword != "while") return false;
    const bool is_test = condition == Words{"[", "1", "]"} ||
                         condition == Words{"[", "true", "]"} || first == "((1))";
    return kTrue.contains(first) || is_test;
  }

  const LoopFinder& finder_;
  const ShellCall& call_;
  const std::vector<std::string>& names_;
};

}  // namespace

bool is_shell(std::string_view program) {
  return std::find(kShells.begin(), kShells.end(), program) != kShells.end();
}

ShellCall parse_shell_call(const std::vector<std::string>& words) {
  ShellCall call;
  size_t next = 1;
  // "busybox sh -c TEXT"
  if (words.size() > 1 && base_name(words[0]) == "busybox") next = 2;
  for (; next < words.size(); ++next) {
    const std::string& word = words[next];
    const bool is_option = word.size() > 1 && (word[0] == '-' || word[0] == '+');
    if (!is_option || word == "--") {
      next += word == "--" ? 1 : 0;
      break;
    }
    if (word.starts_with("--")) {
      next += word == "--rcfile" || word == "--init-file" ? 1 : 0;
      continue;
    }
    if (word[0] == '-') {
      call.has_text |= word.find('c') != std::string::npos;
      call.ends_on_errors |= word.find('e') != std::string::npos;
    }
    if (word.back() == 'o' || word.back() == 'O') {
      ++next;
      call.ends_on_errors |= next < words.size() && words[next] == "errexit";
    }
  }
  if (next >= words.size()) {
    call.has_text = false;
    return call;
  }
  (call.has_text ? call.text : call.script) = words[next];
  // For a script $0 is the script. After -c the word behind the text is $0.
  for (size_t i = next + (call.has_text ? 1 : 0); i < words.size(); ++i)
    call.arguments.push_back(words[i]);
  return call;
}

StartsAgain judge_shell_text(std::string_view text, const ShellCall& call,
                             const std::vector<std::string>& names) {
  if (text.size() > kTextMaxBytes) return StartsAgain::kPerhaps;
  Lexer lexer(text);
  LoopFinder finder(lexer.run());
  finder.run();
  const bool understood = lexer.understood() && finder.understood();
  if (finder.loops().empty()) return understood ? StartsAgain::kNo : StartsAgain::kPerhaps;
  const Judgement judgement(finder, call, names);
  if (!understood || judgement.ends_on_errors()) return StartsAgain::kPerhaps;
  const bool surely = std::any_of(finder.loops().begin(), finder.loops().end(),
                                  [&](const Loop& loop) { return judgement.starts_surely(loop); });
  return surely ? StartsAgain::kSurely : StartsAgain::kPerhaps;
}

}  // namespace ppmr
