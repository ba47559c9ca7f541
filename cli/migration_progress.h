// Shows the progress of a migration. On a terminal it has one line per process, redrawn in place.
// Otherwise it has one line or JSON object per event.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cli/phase_words.h"
#include "cli/screen/rates.h"
#include "daemon/command_line/terminal_style.h"
#include "mount/mount_table.h"

namespace ppmr {

struct ProgressLine {
  int pid = 0;
  std::string name;
  std::string phase = phase::kWaiting;
  uint64_t round = 0;       // the present round; counts from 1; 0: none
  bool has_rounds = false;  // true: the size of what the frozen process will send is not known
  bool is_paused = false;
  uint64_t bytes = 0;           // sent: the sum of `checkpoint` and `memory`
  uint64_t expected_bytes = 0;  // an estimated maximum; 0: unknown
  // The part is the present round, or the fill.
  uint64_t part_bytes = 0;           // sent so far
  uint64_t part_expected_bytes = 0;  // of the whole part
  uint64_t earlier_bytes = 0;        // the bytes of the rounds before the present one
  double rate_bytes_per_s = 0;       // 0: not measured yet
  std::string migration;
  std::string checkpoint;
  std::string memory;  // the checkpoint of the memory; empty: the images include the memory
  RateMeter meter;
};

// Returns the text of a line:
// "  412 redis   round 1    120 MiB of 128 MiB  93%  1.1 GiB/s  0.1 s left".
std::string progress_text(const ProgressLine& line,
                          const TerminalStyle& style = TerminalStyle(false, false));
// Returns the lines for a terminal of this size. Cuts each line to the width. Returns at most as
// many lines as the height allows, because lines that scroll away cannot be redrawn.
std::vector<std::string> progress_lines(const std::vector<ProgressLine>& lines, size_t columns,
                                        size_t rows, const TerminalStyle& style);
nlohmann::json progress_json(const ProgressLine& line);

enum class ProgressStyle {
  kTerminal,  // redrawn lines
  kLines,     // events only
  kJson,      // events, and the progress of each process twice a second
  kNone,      // nothing
};

// Threads: any thread may call on_event(); one thread calls the other functions.
class MigrationProgress {
 public:
  // `mount`: the mount whose daemon reports the bytes of each checkpoint.
  MigrationProgress(MountEntry mount, ProgressStyle style)
      : mount_(std::move(mount)), style_(style) {}
  ~MigrationProgress() { stop(); }

  void add_process(int pid, const std::string& name, uint64_t expected_bytes);
  void start();
  // Draws the final state.
  void stop();
  // Takes an event of a Migration.
  void on_event(const nlohmann::json& event);

 private:
  void watch();
  void query_daemon();
  void follow(const nlohmann::json& event) PPMR_REQUIRES(mutex_);
  static void follow(const nlohmann::json& event, ProgressLine& line);
  void draw() PPMR_REQUIRES(mutex_);
  void print_above(const std::string& text) PPMR_REQUIRES(mutex_);
  std::string to_first_line() PPMR_REQUIRES(mutex_);

  const MountEntry mount_;
  const ProgressStyle style_;
  Mutex mutex_;
  CondVar stopped_;
  std::vector<ProgressLine> lines_ PPMR_GUARDED_BY(mutex_);
  // Lines on the terminal that the next draw() overwrites.
  size_t drawn_ PPMR_GUARDED_BY(mutex_) = 0;
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ppmr
