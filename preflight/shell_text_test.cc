// Tests the judgement of texts for the shell, and the parser of a shell's command line.
#include "preflight/shell_text.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

StartsAgain judge(const std::string& text, const std::vector<std::string>& arguments = {}) {
  return judge_shell_text(text, {.arguments = arguments}, {"server"});
}

TEST(ShellText, EndlessLoopStartsItsProgramAgain) {
  for (const char* text : {
           "while true; do ./server; done",
           "while :\ndo\n  ./server --port 80 >>log 2>&1\n  sleep 1\ndone\n",
           "#!/bin/sh\n# restarts it\ncd /srv\nwhile true; do setsid --wait /srv/server "
           "</dev/null; "
           "done",
           "while [ 1 ]; do ./server & wait; done",
           "until false; do ./server || echo failed; done",
           "for ((;;)); do server; done",
           "while sleep 1; do ./server; done",
           "until ./server; do echo again; done",
           "while ! ./server; do sleep 1; done",
           "P=/srv/server; while true; do $P; done",
           "P='/srv/server --fast'; while true; do \"${P}\" -v; done",
           "(while true; do ./server; done) &\nwait",
           "while true; do if true; then ./server; fi; done",
           "while true; do for i in 1 2; do ./server $i; done; done",
           "while true; do (cd /srv && exec ./server); done",
           "while true; do ( ./server; exit 0 ); done",
           "case $1 in a) ;; esac; while true; do ./server; done",
           "trap 'kill 0' TERM; while true; do ./server; done",
       })
    EXPECT_EQ(judge(text), StartsAgain::kSurely) << text;
  EXPECT_EQ(judge("while true; do \"$@\"; done", {"loop", "./server", "-v"}), StartsAgain::kSurely);
  EXPECT_EQ(judge("while true; do $1; done", {"loop", "./server"}), StartsAgain::kSurely);
}

TEST(ShellText, LoopThatMayEndIsUncertain) {
  for (const char* text : {
           "while true; do ./server || break; done",
           "while true; do ./server; [ $? = 0 ] || exit 1; done",
           "set -e; while true; do ./server; done",
           "while ./server; do :; done",
           "while true; do exec ./server; done",
           "(while true; do ./server; exit; done)",
           "while true; do case $? in 0) exit ;; esac; ./server; done",
           "until ! ./server; do :; done",
           "for i in 1 2 3; do ./server; done",
           "while read line; do ./server $line; done <list",
           "while true; do other; done & ./server",
           "until ping -c 1 db; do sleep 1; done; ./server",
           "run() { ./server; }; while true; do run; done",
           "while true; do echo './server'\\''; done",
           "while true; do ./server; done <<EOF\nx\nEOF",
           "trap 'exit 1' CHLD; while true; do ./server; done",
           "while true; do ./server; eval $next; done",
           "while true; do ./server",
           "done",
           "'",
       })
    EXPECT_EQ(judge(text), StartsAgain::kPerhaps) << text;
  EXPECT_EQ(judge_shell_text("while true; do ./server; done", {.ends_on_errors = true}, {"server"}),
            StartsAgain::kPerhaps);
}

TEST(ShellText, TextOfAnAttackerIsJudgedInTime) {
  std::string nested, long_variable = "A='" + std::string(30'000, ' ') + "x'; while true; do ";
  for (int i = 0; i < 5'000; ++i) nested += "while a;do ";
  for (int i = 0; i < 5'000; ++i) nested += "b;", long_variable += "$A;";
  EXPECT_EQ(judge(nested), StartsAgain::kPerhaps);
  EXPECT_EQ(judge(long_variable + "done"), StartsAgain::kPerhaps);
  EXPECT_EQ(judge(std::string(1 << 20, ';')), StartsAgain::kPerhaps);
}

TEST(ShellText, TextWithoutLoopStartsNothingAgain) {
  for (const char* text : {
           "",
           "./server",
           "./server; echo done",
           "echo while true; ./server",
           "echo 'while true; do ./server; done'; ./server",
           "# while true; do ./server; done\n./server",
           "x=$(date); ./server 2>&1 | tee log",
       })
    EXPECT_EQ(judge(text), StartsAgain::kNo) << text;
}

TEST(ShellText, CommandLineOfAShellIsUnderstood) {
  const ShellCall text = parse_shell_call({"sh", "-c", "echo $1", "name", "one"});
  EXPECT_TRUE(text.has_text);
  EXPECT_EQ(text.text, "echo $1");
  EXPECT_EQ(text.arguments, (std::vector<std::string>{"name", "one"}));
  const ShellCall script = parse_shell_call({"/bin/bash", "-x", "-o", "errexit", "./loop", "one"});
  EXPECT_FALSE(script.has_text);
  EXPECT_EQ(script.script, "./loop");
  EXPECT_TRUE(script.ends_on_errors);
  EXPECT_EQ(script.arguments, (std::vector<std::string>{"./loop", "one"}));
  EXPECT_EQ(parse_shell_call({"bash", "-lc", "x"}).text, "x");
  EXPECT_EQ(parse_shell_call({"bash", "--rcfile", "f", "--", "-s"}).script, "-s");
  EXPECT_EQ(parse_shell_call({"busybox", "sh", "loop"}).script, "loop");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {}, {"-bash"}, {"bash", "--login"}, {"sh", "-i"}, {"sh", "-c"}, {"bash", "-s"}})
    EXPECT_TRUE(parse_shell_call(words).reads_input());
}

TEST(ShellText, ShellsAreKnown) {
  EXPECT_TRUE(is_shell("bash"));
  EXPECT_FALSE(is_shell("python3"));
  EXPECT_FALSE(is_shell("fish"));  // another grammar
}

}  // namespace
}  // namespace ppmr
