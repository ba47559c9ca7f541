// One line for each process while it is being moved: on a terminal they are drawn again and again,
// as JSON they follow each other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <vector>

#include "mount/control/mount_table.h"

namespace ppmr {

struct ProgressLine {
  int pid = 0;
  std::string name;
  std::string phase = "waiting";
  uint64_t bytes = 0;           // in the mount so far
  uint64_t expected_bytes = 0;  // at most about so many; 0: unknown
  double rate_bytes_per_s = 0;
  std::string migration;
  std::string checkpoint;  // as the daemon knows it
  std::chrono::steady_clock::time_point asked_at{};
};

// "  412 redis   dumping    120 MiB of 128 MiB, 1.1 GiB/s, 0.1 s left".
std::string progress_text(const ProgressLine& line);
nlohmann::json progress_json(const ProgressLine& line);

enum class ProgressStyle {
  kTerminal,  // lines that are drawn over
  kLines,     // what has happened, and nothing in between
  kJson,      // events, and where everybody is twice a second
};

// Threads: note() by any; the others by one.
class MigrationProgress {
 public:
  // `mount`: whose daemon knows how many bytes there are.
  MigrationProgress(MountEntry mount, ProgressStyle style)
      : mount_(std::move(mount)), style_(style) {}
  ~MigrationProgress() { stop(); }

  void expect(int pid, const std::string& name, uint64_t bytes);
  void start();
  // Draws a last time.
  void stop();
  // An event of Migration's.
  void note(const nlohmann::json& event);

 private:
  void watch();
  void ask_daemon();
  void draw();

  const MountEntry mount_;
  const ProgressStyle style_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  // Guarded by mutex_.
  std::vector<ProgressLine> lines_;
  size_t drawn_ = 0;  // lines on the terminal that are ours
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ppmr
