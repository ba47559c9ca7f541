#include "cli/migration_progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/without_exceptions.h"
#include "cli/migration_report.h"
#include "cli/screen/one_line.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/records/ownership_record.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTerminalInterval{200};
constexpr milliseconds kJsonInterval{500};
constexpr milliseconds kDaemonTimeout{500};

// A rate is shown only after it has been measured for this time. At the beginning of a round the
// rate varies too much to compute the time left from it.
constexpr milliseconds kMeasured{400};

// Returns whether bytes of the process are on their way, or are put in place.
bool is_moving(const ProgressLine& line) {
  return line.phase == phase::kCopying || line.phase == phase::kFrozen ||
         line.phase == phase::kFilling;
}

bool is_done(const ProgressLine& line) {
  return line.phase == phase::kMoved || line.phase == phase::kStayed;
}

// The bytes to which the percentage and the time left refer: the bytes of the present round, of the
// fill, or of the whole move.
struct Part {
  uint64_t bytes = 0;
  uint64_t expected_bytes = 0;  // 0: unknown
};

Part part_of(const ProgressLine& line) {
  if (line.part_expected_bytes > 0) return {line.part_bytes, line.part_expected_bytes};
  if (line.has_rounds) return {line.bytes, 0};
  return {line.bytes, line.expected_bytes};
}

double left_of(const ProgressLine& line) {
  const Part part = part_of(line);
  const bool goes_on = is_moving(line) && !line.is_paused;
  return goes_on ? seconds_left(part.bytes, part.expected_bytes, line.rate_bytes_per_s) : -1;
}

std::string word_of(const ProgressLine& line) {
  return line.is_paused && line.phase == phase::kCopying ? phase::kPaused : line.phase;
}

void measure(ProgressLine& line, uint64_t bytes, std::chrono::steady_clock::time_point now) {
  line.meter.add(bytes, now);
  line.rate_bytes_per_s = line.meter.measured_for() < kMeasured ? 0 : line.meter.bytes_per_s();
}

winsize size_of_terminal() {
  winsize size{};
  const bool is_known =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return is_known ? size : winsize{24, 80, 0, 0};
}

}  // namespace

std::string progress_text(const ProgressLine& line, const TerminalStyle& style) {
  std::string phase = fmt::format("{:<10}", phase::shown(word_of(line), line.round));
  if (line.phase == phase::kMoved) phase = style.good(phase);
  if (line.phase == phase::kStayed) phase = style.bad(phase);
  std::string text =
      fmt::format("{:>8} {} {}", line.pid,
                  fitted(printable(line.name, Charset::kAscii), 15, Charset::kAscii), phase);
  if (line.bytes == 0) return text;
  const Part part = part_of(line);
  text += " " + format_size(is_moving(line) ? part.bytes : line.bytes);
  if (!is_moving(line)) return text;
  if (part.expected_bytes > part.bytes) {
    text += fmt::format(" of {}  {}", format_size(part.expected_bytes),
                        percentage(part.bytes, part.expected_bytes));
  }
  if (line.rate_bytes_per_s > 0 && !line.is_paused) {
    text += fmt::format("  {}/s", format_size(static_cast<uint64_t>(line.rate_bytes_per_s)));
  }
  const double left = left_of(line);
  if (left >= 0) {
    text +=
        "  " + format_time(std::chrono::milliseconds(static_cast<int64_t>(left * 1000))) + " left";
  }
  return text;
}

std::vector<std::string> progress_lines(const std::vector<ProgressLine>& lines, size_t columns,
                                        size_t rows, const TerminalStyle& style) {
  // One row stays free, because the cursor is on the line below the last one.
  const size_t room = std::max<size_t>(rows, 2) - 1;
  const bool all_fit = lines.size() <= room;
  const size_t shown = all_fit ? lines.size() : room - 1;
  // If the lines do not all fit, processes that move come first.
  std::vector<const ProgressLine*> order;
  for (const ProgressLine& line : lines) order.push_back(&line);
  if (!all_fit) {
    std::stable_partition(order.begin(), order.end(), [](const ProgressLine* line) {
      return line->phase != phase::kWaiting && !is_done(*line);
    });
  }
  std::vector<std::string> result;
  for (size_t i = 0; i < shown; ++i) {
    const std::string plain = progress_text(*order[i]);
    // Cutting a coloured line could remove the code that ends its colour.
    result.push_back(plain.size() <= columns ? progress_text(*order[i], style)
                                             : cut(plain, columns, Charset::kAscii));
  }
  if (!all_fit) {
    result.push_back(
        cut(fmt::format("and {} more processes", lines.size() - shown), columns, Charset::kAscii));
  }
  return result;
}

json progress_json(const ProgressLine& line) {
  const Part part = part_of(line);
  return {{"event", "progress"},
          {"time_ns", realtime_ns()},
          {"migration", line.migration},
          {"pid", line.pid},
          {"name", line.name},
          {"phase", word_of(line)},
          {"round", line.round},
          {"bytes", line.bytes},
          {"expected_bytes", line.expected_bytes},
          {"part_bytes", part.bytes},
          {"part_expected_bytes", part.expected_bytes},
          {"rate_bytes_per_s", line.rate_bytes_per_s},
          {"left_s", left_of(line)}};
}

void MigrationProgress::add_process(int pid, const std::string& name, uint64_t expected_bytes) {
  MutexLock lock(mutex_);
  lines_.emplace_back();
  lines_.back().pid = pid;
  lines_.back().name = name;
  lines_.back().expected_bytes = expected_bytes;
}

void MigrationProgress::start() {
  if (style_ == ProgressStyle::kTerminal || style_ == ProgressStyle::kJson) {
    // A migration does not end because its progress cannot be shown.
    (void)without_exceptions([this]() -> Status {
      thread_ = std::thread([this] {
        (void)without_exceptions([this]() -> Status {
          watch();
          return {};
        });
      });
      return {};
    });
  }
}

void MigrationProgress::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MigrationProgress::watch() {
  const milliseconds interval =
      style_ == ProgressStyle::kTerminal ? kTerminalInterval : kJsonInterval;
  MutexLock lock(mutex_);
  while (
      !stopped_.wait_for(mutex_, interval, [this]() PPMR_REQUIRES(mutex_) { return stopping_; })) {
    lock.unlock();
    query_daemon();
    lock.lock();
    draw();
  }
  if (style_ == ProgressStyle::kTerminal) draw();
}

void MigrationProgress::query_daemon() {
  const auto status = call(mount_.source, to_request(request::Status{}), kDaemonTimeout);
  if (!status) return;
  const auto now = std::chrono::steady_clock::now();
  std::map<std::string, uint64_t> bytes_of;  // key: the name of a checkpoint
  for (const json& checkpoint : status->value("checkpoints", json::array())) {
    bytes_of[checkpoint.value("name", "")] = checkpoint.value("bytes", uint64_t{0});
  }
  MutexLock lock(mutex_);
  for (ProgressLine& line : lines_) {
    if (!bytes_of.contains(line.checkpoint)) continue;
    if (line.phase == phase::kFilling || is_done(line)) continue;
    const uint64_t memory_bytes = line.memory.empty() ? 0 : bytes_of[line.memory];
    line.bytes = bytes_of[line.checkpoint] + memory_bytes;
    if (line.phase == phase::kCopying) {
      line.part_bytes = memory_bytes - std::min(line.earlier_bytes, memory_bytes);
    }
    measure(line, line.bytes, now);
  }
}

// Begins a phase or a round, and measures its rate anew.
void begin_part(ProgressLine& line, const char* phase, uint64_t expected_bytes) {
  line.phase = phase;
  line.part_bytes = 0;
  line.part_expected_bytes = expected_bytes;
  line.rate_bytes_per_s = 0;
  line.meter = {};
}

void MigrationProgress::follow(const json& event, ProgressLine& line) {
  const std::string what = event.value("event", "");
  const uint64_t bytes = event.value("bytes", uint64_t{0});
  line.checkpoint = event.value("checkpoint", line.checkpoint);
  line.memory = event.value("memory", line.memory);
  if (what == "copying") begin_part(line, phase::kCopying, 0);
  if (what == "round") {
    begin_part(line, phase::kCopying, bytes);
    line.round = event.value("round", uint64_t{0}) + 1;
    line.has_rounds = true;
    if (line.round == 1) line.earlier_bytes = 0;  // the move may have begun its rounds anew
  }
  if (what == "copied") line.earlier_bytes += bytes;
  if (what == "dumping") begin_part(line, phase::kFrozen, 0);
  if (what == "sealed") {
    begin_part(line, phase::kRestoring, 0);
    line.bytes = bytes;
  }
  if (what == "running") begin_part(line, phase::kFilling, 0);
  if (what == "filling") {
    line.part_expected_bytes = bytes;
    line.part_bytes = bytes - std::min(event.value("missing_bytes", uint64_t{0}), bytes);
    measure(line, line.part_bytes, std::chrono::steady_clock::now());
  }
  if (what == "complete") begin_part(line, phase::kMoved, 0);
}

// Updates the lines of the processes to which the event refers.
void MigrationProgress::follow(const json& event) {
  const std::string what = event.value("event", "");
  const std::string id = event.value("migration", "");
  for (ProgressLine& line : lines_) {
    if (line.pid == event.value("pid", 0)) {
      line.migration = event.value("migration", line.migration);
      follow(event, line);
    }
    if (id.empty() || line.migration != id) continue;
    if (what == "paused" || what == "resumed") {
      line.is_paused = what == "paused";
      line.meter = {};
      line.rate_bytes_per_s = 0;
    }
    if (what == "aborted") begin_part(line, phase::kStayed, 0);
  }
}

void MigrationProgress::on_event(const json& event) {
  MutexLock lock(mutex_);
  const std::string what = event.value("event", "");
  follow(event);
  switch (style_) {
    case ProgressStyle::kTerminal:
      if (what == "warning" || what == "begun" || what == "paused" || what == "resumed") {
        print_above(event_text(event));
      }
      draw();
      break;
    case ProgressStyle::kJson:
      // A "filling" event needs no line, because the next progress object has its bytes.
      if (what != "filling") print_whole(stdout, "{}\n", json_text(event));
      break;
    case ProgressStyle::kLines:
      if (const std::string line = event_text(event); !line.empty()) {
        print_to(stderr, "{}\n", one_line(line));
      }
      break;
    case ProgressStyle::kNone:
      break;
  }
}

// Returns the control sequence that moves the cursor to the first line.
std::string MigrationProgress::to_first_line() {
  const std::string sequence = drawn_ > 0 ? fmt::format("\x1b[{}A", drawn_) : "";
  drawn_ = 0;
  return sequence;
}

// Prints `text` in place of the progress. The next draw() puts the progress below `text`, so that
// `text` stays visible.
void MigrationProgress::print_above(const std::string& text) {
  const std::string first = to_first_line();
  const std::string shown = printable(text, Charset::kAscii);
  print_as_it_is(stderr,
                 fmt::format("{}\x1b[J{}\n", first, wrapped(shown, columns_of_output(stderr))));
}

// Writes all lines in one call, so that a terminal never shows a part of them.
void MigrationProgress::draw() {
  if (style_ == ProgressStyle::kJson) {
    for (const ProgressLine& line : lines_) {
      if (is_moving(line)) print_whole(stdout, "{}\n", json_text(progress_json(line)));
    }
    return;
  }
  const winsize size = size_of_terminal();
  const auto lines =
      progress_lines(lines_, size.ws_col, size.ws_row, TerminalStyle::of(STDERR_FILENO));
  std::string text = to_first_line();
  for (const std::string& line : lines) text += "\x1b[2K" + line + "\n";
  print_as_it_is(stderr, text + "\x1b[J");
  drawn_ = lines.size();
}

}  // namespace ppmr
