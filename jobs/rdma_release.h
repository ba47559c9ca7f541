/* For messaging libraries that use RDMA: lets ppmr move the process.
 *
 * CRIU cannot dump an open RDMA device. With this header, a library opens a socket. Over this
 * socket, ppmr asks the library to release all RDMA objects before the move, and to resume
 * afterwards, at the source or at the target. In the library's progress loop, or in its own thread:
 *
 *     struct ppmr_rdma rdma;
 *
 *     ppmr_rdma_open(&rdma);
 *
 *     poll(ppmr_rdma_fd(&rdma), POLLIN, ppmr_rdma_timeout_ms(&rdma));
 *
 *     switch (ppmr_rdma_next(&rdma))
 *
 *     case PPMR_RDMA_RELEASE: close queue pairs, memory regions and devices. Queue messages that
 *     the program sends from now on. Call ppmr_rdma_done(&rdma, NULL), or ppmr_rdma_done(&rdma,
 *     reason) if a release is not possible.
 *
 *     case PPMR_RDMA_RESUME: open all of them again, and call ppmr_rdma_done(&rdma, NULL).
 *
 *     case PPMR_RDMA_CHECK, only if you have set rdma.answers_checks to 1 after ppmr_rdma_open():
 *     call ppmr_rdma_answer(&rdma, text), and go on as before.
 *
 * The answer to a check is text of at most PPMR_RDMA_ANSWER_MAX bytes. The first line is
 * PPMR_RDMA_CHECKED. The other lines can be in any order. ppmr ignores lines that it does not know:
 *
 *         hindrance TEXT     a release would fail now; TEXT says why
 *         shows-writes       the library promises: after a release, the kernel counts every page
 *                            that a device may have written as written (MADV_POPULATE_WRITE does
 *                            that), even pages of regions that were deregistered since this check
 *         device NAME key=value...    what the target's device must be able to do; the keys are in
 *                            preflight/rdma_release/rdma_check.h
 *
 * After a release, no file below /dev/infiniband may be open or mapped. If no request to resume
 * arrives within PPMR_RDMA_AWAY_MS, for example because ppmr was killed, ppmr_rdma_next() returns
 * PPMR_RDMA_RESUME without a request. A dump that begins after that fails without harm.
 *
 * C99 or C++, with _GNU_SOURCE. Not thread-safe. The socket is in the abstract namespace under a
 * random name, so CRIU can restore it on any node. Only root and the process's own user may send
 * requests.
 */
#ifndef PPMR_RDMA_RELEASE_H
#define PPMR_RDMA_RELEASE_H

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PPMR_RDMA_PREFIX "ppmr-rdma-release/"
#ifndef PPMR_RDMA_AWAY_MS
#define PPMR_RDMA_AWAY_MS 120000
#endif

#define PPMR_RDMA_CHECKED "ppmr-rdma-check 1"
#define PPMR_RDMA_ANSWER_MAX 4096

enum ppmr_rdma_request {
  PPMR_RDMA_NONE = 0,
  PPMR_RDMA_RELEASE = 1,
  PPMR_RDMA_RESUME = 2,
  PPMR_RDMA_CHECK = 3
};

struct ppmr_rdma {
  int listener;
  int connection;        /* of a request that is not answered yet, or -1 */
  int asked;             /* whether ppmr_rdma_next() has read the request */
  long long deadline_ms; /* when to resume without a request; 0: not released */
  int answers_checks;    /* the library sets this to 1 if it answers checks */
};

static inline long long ppmr_rdma_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Registers the process. Returns 0, or -1 with errno. A child process that shares the socket gets
 * no requests of its own. */
static inline int ppmr_rdma_open(struct ppmr_rdma *self) {
  struct sockaddr_un name;
  unsigned char id[8];
  int length, i;
  memset(&name, 0, sizeof(name));
  name.sun_family = AF_UNIX;
  if (getrandom(id, sizeof(id), 0) != (ssize_t)sizeof(id)) return -1;
  length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "%s", PPMR_RDMA_PREFIX);
  for (i = 0; i < 8; ++i) {
    length += snprintf(name.sun_path + 1 + length, sizeof(name.sun_path) - 1 - (size_t)length,
                       "%02x", id[i]);
  }
  self->connection = -1;
  self->asked = 0;
  self->deadline_ms = 0;
  self->answers_checks = 0;
  self->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (self->listener < 0) return -1;
  if (bind(self->listener, (const struct sockaddr *)&name,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) != 0 ||
      listen(self->listener, 4) != 0) {
    close(self->listener);
    self->listener = -1;
    return -1;
  }
  return 0;
}

/* Returns the descriptor for poll(2) with POLLIN. It may change with each ppmr_rdma_next(). */
static inline int ppmr_rdma_fd(const struct ppmr_rdma *self) {
  return self->connection >= 0 && !self->asked ? self->connection : self->listener;
}

/* Returns the timeout for poll(2). After it, call ppmr_rdma_next() even without a request; -1: no
 * timeout. */
static inline int ppmr_rdma_timeout_ms(const struct ppmr_rdma *self) {
  long long left = self->deadline_ms - ppmr_rdma_now_ms();
  if (self->deadline_ms == 0) return -1;
  /* The deadline comes from the clock of another machine, so the time since the release is unknown.
   */
  if (left > PPMR_RDMA_AWAY_MS) return 0;
  return left > 0 ? (int)left : 0;
}

/* Answers the request that the last ppmr_rdma_next() has returned. Changes no other state. */
static inline void ppmr_rdma_answer(struct ppmr_rdma *self, const char *text) {
  if (self->connection < 0) return; /* there was no request, or ppmr has closed the connection */
  (void)!send(self->connection, text, strlen(text), MSG_NOSIGNAL);
  close(self->connection);
  self->connection = -1;
  self->asked = 0;
}

/* Answers PPMR_RDMA_RELEASE or PPMR_RDMA_RESUME. `error`: why the library could not do it, or
 * NULL. */
static inline void ppmr_rdma_done(struct ppmr_rdma *self, const char *error) {
  if (error) self->deadline_ms = 0; /* the library has released nothing, so it need not resume */
  ppmr_rdma_answer(self, error ? error : "ok");
}

static inline int ppmr_rdma_is_trusted(int connection) {
  struct ucred peer;
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == 0 || peer.uid == geteuid());
}

/* Returns what the library must do now. Never blocks. After PPMR_RDMA_RELEASE and PPMR_RDMA_RESUME
 * call ppmr_rdma_done(), after PPMR_RDMA_CHECK ppmr_rdma_answer(). */
static inline enum ppmr_rdma_request ppmr_rdma_next(struct ppmr_rdma *self) {
  char text[16];
  ssize_t size;
  if (self->connection < 0) {
    self->connection = accept4(self->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (self->connection >= 0 && !ppmr_rdma_is_trusted(self->connection))
      ppmr_rdma_answer(self, "not permitted");
  }
  if (self->connection >= 0 && !self->asked) {
    size = recv(self->connection, text, sizeof(text) - 1, 0);
    if (size > 0) {
      text[size] = 0;
      self->asked = 1;
      if (strcmp(text, "release") == 0) {
        self->deadline_ms = ppmr_rdma_now_ms() + PPMR_RDMA_AWAY_MS;
        return PPMR_RDMA_RELEASE;
      }
      if (strcmp(text, "resume") == 0 && self->deadline_ms != 0) {
        self->deadline_ms = 0;
        return PPMR_RDMA_RESUME;
      }
      if (strcmp(text, "check") == 0 && self->answers_checks) return PPMR_RDMA_CHECK;
      /* A process that has released nothing, or has resumed already, need not resume. */
      ppmr_rdma_answer(self, strcmp(text, "resume") == 0 ? "ok" : "unknown request");
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      close(self->connection);
      self->connection = -1;
    }
  }
  if (!self->asked && ppmr_rdma_timeout_ms(self) == 0) {
    self->deadline_ms = 0;
    return PPMR_RDMA_RESUME;
  }
  return PPMR_RDMA_NONE;
}

static inline void ppmr_rdma_close(struct ppmr_rdma *self) {
  if (self->connection >= 0) close(self->connection);
  if (self->listener >= 0) close(self->listener);
  self->connection = self->listener = -1;
}

#endif
