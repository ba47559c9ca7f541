// A child process that answers questions over two pipes.
#pragma once

#include <unistd.h>

#include <cstdint>

#include "arithmetic.h"
#include "posix.h"

namespace ppmr_programs {

struct Answer {
  // `value`: mix(number). `served`: how many numbers the child has answered.
  uint64_t value = 0, served = 0;
};

// Answers over one pair of descriptors until the peer closes its end.
inline void answer_over(int questions, int answers) {
  Answer answer;
  uint64_t number = 0;
  while (read_whole(questions, &number, sizeof number)) {
    answer.value = mix(number);
    ++answer.served;
    if (!write_whole(answers, &answer, sizeof answer)) return;
  }
}

inline Answer ask_over(int questions, int answers, uint64_t number) {
  Answer answer;
  if (!write_whole(questions, &number, sizeof number) ||
      !read_whole(answers, &answer, sizeof answer))
    die("a partner does not answer");
  return answer;
}

// Forks a child that runs `body` and exits.
template <typename Body>
pid_t start_child(Body body) {
  const pid_t pid = fork();
  if (pid < 0) die("fork");
  if (pid == 0) {
    body();
    _exit(0);
  }
  return pid;
}

// The descriptors stay open until the process ends.
struct PipeChild {
  PipeChild() {
    int ask[2], reply[2];
    if (pipe(ask) != 0 || pipe(reply) != 0) die("pipe");
    pid = start_child([&] {
      close(ask[1]);
      close(reply[0]);
      answer_over(ask[0], reply[1]);
    });
    close(ask[0]);
    close(reply[1]);
    questions = ask[1];
    answers = reply[0];
  }
  Answer ask(uint64_t number) const { return ask_over(questions, answers, number); }

  pid_t pid = -1;
  int questions = -1, answers = -1;
};

}  // namespace ppmr_programs
