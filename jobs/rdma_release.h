/* For messaging libraries that use RDMA: lets ppmr move the process.
 *
 * CRIU cannot dump an open RDMA device. With this header a library registers a socket, and ppmr
 * asks it to release everything of RDMA before the move, and to resume afterwards, wherever the
 * process then is. In the library's progress loop, or in a thread of its own:
 *
 *     struct ppmr_rdma rdma;
 *
 *     ppmr_rdma_open(&rdma);
 *
 *     poll(ppmr_rdma_fd(&rdma), POLLIN, ppmr_rdma_timeout_ms(&rdma));
 *
 *     switch (ppmr_rdma_next(&rdma))
 *
 *     case PPMR_RDMA_RELEASE: close queue pairs, memory regions and devices, queue what is sent
 *     from now on, and call ppmr_rdma_done(&rdma, NULL), or with the reason why it is not possible.
 *
 *     case PPMR_RDMA_RESUME: open them again, and call ppmr_rdma_done(&rdma, NULL).
 *
 *     case PPMR_RDMA_CHECK, only if rdma.answers_checks was set to 1 after ppmr_rdma_open(): call
 *     ppmr_rdma_answer(&rdma, text), and go on as before.
 *
 * The answer to a check is text of at most PPMR_RDMA_ANSWER_MAX bytes. ppmr ignores lines that it
 * does not know. The first line is PPMR_RDMA_CHECKED, then in any order:
 *
 *         hindrance TEXT     a release would fail now, and why
 *         shows-writes       after a release, the kernel takes every page that a device may have
 *                            written as written (MADV_POPULATE_WRITE does that), also those of
 *                            regions that were deregistered since this check
 *         device NAME key=value...    what the target's device must be able to do: the keys are in
 *                            preflight/rdma_release/rdma_check.h
 *
 * After a release nothing below /dev/infiniband may be open or mapped. A library that is not told
 * to resume does so by itself after PPMR_RDMA_AWAY_MS: then ppmr was killed, and a dump that still
 * begins fails without harm.
 *
 * C99 or C++, with _GNU_SOURCE. Not thread-safe. The socket is in the abstract namespace under a
 * random name, so it can be restored anywhere. Requests are obeyed from root and from the process's
 * own user only.
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
  int asked;             /* the request has been read */
  long long deadline_ms; /* when to resume without being told; 0: not released */
  int answers_checks;    /* set by the library */
};

static inline long long ppmr_rdma_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Registers the process. Returns 0, or -1 with errno. A child process that shares the socket is not
 * asked for itself. */
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

/* For poll(2) with POLLIN; may be another one after each ppmr_rdma_next(). */
static inline int ppmr_rdma_fd(const struct ppmr_rdma *self) {
  return self->connection >= 0 && !self->asked ? self->connection : self->listener;
}

/* For poll(2): until ppmr_rdma_next() has to be called without a request; -1: for ever. */
static inline int ppmr_rdma_timeout_ms(const struct ppmr_rdma *self) {
  long long left = self->deadline_ms - ppmr_rdma_now_ms();
  if (self->deadline_ms == 0) return -1;
  /* The clock of another machine: it is not known how long the process was away. */
  if (left > PPMR_RDMA_AWAY_MS) return 0;
  return left > 0 ? (int)left : 0;
}

/* Answers the request of the last ppmr_rdma_next(), which changes nothing. */
static inline void ppmr_rdma_answer(struct ppmr_rdma *self, const char *text) {
  if (self->connection < 0) return; /* it resumed by itself, or ppmr has gone */
  (void)!send(self->connection, text, strlen(text), MSG_NOSIGNAL);
  close(self->connection);
  self->connection = -1;
  self->asked = 0;
}

/* Answers RELEASE or RESUME. `error`: why it was not done, or NULL. */
static inline void ppmr_rdma_done(struct ppmr_rdma *self, const char *error) {
  if (error) self->deadline_ms = 0; /* nothing was released */
  ppmr_rdma_answer(self, error ? error : "ok");
}

static inline int ppmr_rdma_is_trusted(int connection) {
  struct ucred peer;
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == 0 || peer.uid == geteuid());
}

/* What to do now. Never blocks. After RELEASE and RESUME call ppmr_rdma_done(), after CHECK
 * ppmr_rdma_answer(). */
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
      /* A process that has not released, or has resumed, has nothing to do. */
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
