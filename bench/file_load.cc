// Starts processes that write files like a checkpoint tool, or read files like a restart. Prints
// the time of the processes as one line of JSON.
//
//   file_load write DIR --writers 4 --bytes 256MiB --request 1MiB      DIR/file-0 ... DIR/file-3
//   file_load read  DIR --readers 4 --bytes 256MiB --request 1MiB --stamps 1MiB
//
// Each process touches its memory, then waits for the others. The clock runs from their common
// start to the last close of the last process. write(2) and read(2) use the process's memory
// directly, so with direct I/O each call is one request to a mount. Like a dump, a writer cycles
// through memory larger than the caches. It stamps the first eight bytes of each request with file
// and offset. A reader waits for its file to appear, and checks the stamps and the length.
//
// Times in the output are CLOCK_MONOTONIC, so the times of writers and readers are comparable.

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "base/unique_fd.h"
#include "daemon/command_line/size_option.h"

namespace ppmr {
namespace {

struct Load {
  std::string directory;
  std::string prefix = "file-";
  unsigned processes = 1;
  unsigned files = 1;  // files that each process writes or reads, one after the other
  size_t bytes = size_t{256} << 20;
  size_t request_bytes = size_t{1} << 20;
  size_t memory_bytes = size_t{64} << 20;  // memory of each process
  size_t stamp_interval_bytes = 0;
  bool keep = false;  // overwrite existing files
  std::chrono::milliseconds patience{30'000};
};

// The result of a process, in memory shared with its parent.
struct Record {
  int64_t begun_ns = 0;
  // When the process had moved its last byte, before close(2).
  int64_t moved_ns = 0;
  int64_t ended_ns = 0;
  uint64_t bytes = 0;
  double user_seconds = 0;  // user CPU time from begun_ns to ended_ns
  double system_seconds = 0;
  char error[400] = {};
};

struct Shared {
  sem_t ready;
  sem_t start;
  Record records[64];
};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

void sleep_ms(int64_t ms) {
  const timespec time{ms / 1000, ms % 1000 * 1'000'000};
  nanosleep(&time, nullptr);
}

uint64_t stamp(unsigned file, uint64_t offset) { return uint64_t{file} << 48 | (offset ^ 0x5a5a); }

std::string path_of(const Load& load, unsigned file) {
  return load.directory + "/" + load.prefix + std::to_string(file);
}

Status write_file(const Load& load, unsigned file, std::byte* memory, Record& record) {
  const std::string path = path_of(load, file);
  UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (load.keep ? 0 : O_EXCL), 0644));
  if (!fd) return system_failure("create", path);
  size_t at = 0;
  for (uint64_t offset = 0; offset < load.bytes;) {
    const size_t length = std::min<uint64_t>(load.request_bytes, load.bytes - offset);
    const uint64_t mark = stamp(file, offset);
    std::memcpy(memory + at, &mark, std::min(sizeof mark, length));
    for (size_t done = 0; done < length;) {
      const ssize_t written = ::write(fd.get(), memory + at + done, length - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return system_failure("write to", path, written < 0 ? errno : EIO);
      done += static_cast<size_t>(written);
    }
    record.bytes += length;
    offset += length;
    at += load.request_bytes;
    if (at + load.request_bytes > load.memory_bytes) at = 0;
  }
  record.moved_ns = now_ns();
  if (::close(fd.release()) != 0) return system_failure("close", path);
  return {};
}

Result<UniqueFd> open_when_created(const Load& load, const std::string& path) {
  const int64_t deadline = now_ns() + load.patience.count() * 1'000'000;
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd) return fd;
    if (errno != ENOENT || now_ns() > deadline) return system_failure("open", path);
    sleep_ms(1);
  }
}

Status read_file(const Load& load, unsigned file, std::byte* memory, Record& record) {
  const std::string path = path_of(load, file);
  auto fd = open_when_created(load, path);
  if (!fd) return failure(fd.error());
  uint64_t offset = 0;
  for (size_t at = 0;;) {
    const ssize_t length = ::read(fd->get(), memory + at, load.request_bytes);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return system_failure("read from", path);
    if (length == 0) break;
    const uint64_t end = offset + static_cast<uint64_t>(length);
    if (const size_t interval = load.stamp_interval_bytes; interval > 0) {
      uint64_t next = (offset + interval - 1) / interval * interval;
      for (; next + sizeof(uint64_t) <= end; next += interval) {
        uint64_t mark = 0;
        std::memcpy(&mark, memory + at + (next - offset), sizeof mark);
        if (mark != stamp(file, next)) {
          return failure(EIO,
                         "read from " + path + ": wrong bytes at offset " + std::to_string(next));
        }
      }
    }
    offset = end;
    record.bytes += static_cast<uint64_t>(length);
    at += load.request_bytes;
    if (at + load.request_bytes > load.memory_bytes) at = 0;
  }
  record.moved_ns = now_ns();
  if (offset != load.bytes) {
    return failure(EIO, "read from " + path + ": " + std::to_string(offset) + " bytes, expected " +
                            std::to_string(load.bytes));
  }
  return {};
}

double seconds(timeval time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

using Work = Status (*)(const Load&, unsigned, std::byte*, Record&);

[[noreturn]] void run_process(const Load& load, Work work, unsigned number, Shared& shared) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Record& record = shared.records[number];
  void* memory = mmap(nullptr, load.memory_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  Status status;
  if (memory == MAP_FAILED) {
    status = system_failure("allocate", "the buffer of a process");
  } else {
    for (size_t i = 0; i < load.memory_bytes; i += sizeof(uint64_t)) {
      const uint64_t word = (i + number) * 0x9E3779B97F4A7C15;
      std::memcpy(static_cast<char*>(memory) + i, &word, sizeof word);
    }
  }
  sem_post(&shared.ready);
  while (sem_wait(&shared.start) != 0) {
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  record.begun_ns = now_ns();
  for (unsigned i = 0; i < load.files && status; ++i) {
    status = work(load, number * load.files + i, static_cast<std::byte*>(memory), record);
  }
  record.ended_ns = now_ns();
  getrusage(RUSAGE_SELF, &after);
  record.user_seconds = seconds(after.ru_utime) - seconds(before.ru_utime);
  record.system_seconds = seconds(after.ru_stime) - seconds(before.ru_stime);
  if (!status) snprintf(record.error, sizeof record.error, "%s", status.error().message.c_str());
  _exit(status ? 0 : 1);
}

int run(const Load& load, Work work) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("file_load: mmap of the memory shared with the processes");
    return 1;
  }
  auto* shared = new (memory) Shared;
  sem_init(&shared->ready, 1, 0);
  sem_init(&shared->start, 1, 0);
  for (unsigned i = 0; i < load.processes; ++i) {
    const pid_t pid = fork();
    if (pid == 0) run_process(load, work, i, *shared);
    if (pid < 0) {
      perror("file_load: fork");
      return 1;  // PR_SET_PDEATHSIG: this exit kills the processes that have already started
    }
  }
  for (unsigned i = 0; i < load.processes; ++i) {
    while (sem_wait(&shared->ready) != 0) {
    }
  }
  // The caller waits for this line of the readers, then starts the writers.
  fprintf(stderr, "ready\n");
  for (unsigned i = 0; i < load.processes; ++i) sem_post(&shared->start);
  bool failed = false;
  for (unsigned i = 0; i < load.processes; ++i) {
    int code = 0;
    while (wait(&code) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(code)) {
      fprintf(stderr, "file_load: signal %d ended a process\n", WTERMSIG(code));
    }
    failed |= code != 0;
  }

  Record total = shared->records[0];
  auto each = nlohmann::json::array();
  for (unsigned i = 0; i < load.processes; ++i) {
    const Record& record = shared->records[i];
    if (record.error[0] != 0) fprintf(stderr, "file_load: %s\n", record.error);
    total.begun_ns = std::min(total.begun_ns, record.begun_ns);
    total.moved_ns = std::max(total.moved_ns, record.moved_ns);
    total.ended_ns = std::max(total.ended_ns, record.ended_ns);
    if (i > 0) {
      total.bytes += record.bytes;
      total.user_seconds += record.user_seconds;
      total.system_seconds += record.system_seconds;
    }
    each.push_back(static_cast<double>(record.ended_ns - record.begun_ns) / 1e9);
  }
  if (failed) return 1;
  printf(
      "%s\n",
      nlohmann::json{{"bytes", total.bytes},
                     {"seconds", static_cast<double>(total.ended_ns - total.begun_ns) / 1e9},
                     {"moved_seconds", static_cast<double>(total.moved_ns - total.begun_ns) / 1e9},
                     {"begun_ns", total.begun_ns},
                     {"ended_ns", total.ended_ns},
                     {"each_seconds", each},
                     {"user_seconds", total.user_seconds},
                     {"system_seconds", total.system_seconds}}
          .dump()
          .c_str());
  return 0;
}

void add_load_options(CLI::App& app, Load& load) {
  app.add_option("DIR", load.directory, "directory of the files")->required();
  app.add_option("--prefix", load.prefix, "start of the file names")->capture_default_str();
  app.add_option("--files", load.files, "files of each process, one after the other")
      ->check(CLI::Range(1u, 100000u))
      ->capture_default_str();
  add_size_option(app, "--bytes", load.bytes, "length of each file");
  add_size_option(app, "--request", load.request_bytes, "bytes of one call");
  add_size_option(app, "--memory", load.memory_bytes, "memory that each process cycles through");
}

}  // namespace
}  // namespace ppmr

int main(int argc, char** argv) {
  ppmr::Load load;
  CLI::App app("Writes or reads files and prints how long it took");
  app.require_subcommand(1);
  CLI::App* write = app.add_subcommand("write", "Write files");
  ppmr::add_load_options(*write, load);
  write->add_option("--writers", load.processes, "processes")->check(CLI::Range(1u, 64u));
  write->add_flag("--keep", load.keep, "overwrite existing files");
  CLI::App* read = app.add_subcommand("read", "Read files; wait for those that do not exist yet");
  ppmr::add_load_options(*read, load);
  read->add_option("--readers", load.processes, "processes")->check(CLI::Range(1u, 64u));
  ppmr::add_size_option(*read, "--stamps", load.stamp_interval_bytes,
                        "request size of the writer: check the stamp at each multiple");
  ppmr::add_time_option(*read, "--patience", load.patience, "how long to wait for a file");
  CLI11_PARSE(app, argc, argv);
  load.memory_bytes = std::max(load.memory_bytes, load.request_bytes);
  return ppmr::run(load, write->parsed() ? ppmr::write_file : ppmr::read_file);
}
