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

bool is_dumping(const ProgressLine& line) {
  return line.phase == "dumping" || line.phase == "copying" || line.phase == "copied";
}

// Returns whether the source still sends bytes of the process.
bool is_moving(const ProgressLine& line) {
  return is_dumping(line) || (line.post_copy && line.phase == "running");
}

// Returns the present phase in one word. An event ends one phase and begins the next.
std::string phase_text(const ProgressLine& line) {
  if (line.phase == "copied") return "copying";
  if (line.phase == "sealed") return "restoring";
  if (line.phase == "running") return line.post_copy ? "runs, fills" : "runs there";
  if (line.phase == "complete") return "moved";
  if (line.phase == "stays") return "stays here";
  return line.phase;
}

winsize size_of_terminal() {
  winsize size{};
  const bool is_known =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return is_known ? size : winsize{24, 80, 0, 0};
}

}  // namespace

std::string progress_text(const ProgressLine& line, const TerminalStyle& style) {
  std::string phase = fmt::format("{:<11}", phase_text(line));
  if (line.phase == "complete") phase = style.good(phase);
  if (line.phase == "stays") phase = style.bad(phase);
  std::string text =
      fmt::format("{:>8} {} {}", line.pid,
                  fitted(printable(line.name, Charset::kAscii), 15, Charset::kAscii), phase);
  if (line.bytes == 0) return text;
  text += " " + format_size(line.bytes);
  if (!is_moving(line)) return text;
  if (line.expected_bytes > line.bytes) {
    text += fmt::format(" of {}  {}", format_size(line.expected_bytes),
                        percentage(line.bytes, line.expected_bytes));
  }
  if (line.rate_bytes_per_s > 0) {
    text += fmt::format("  {}/s", format_size(static_cast<uint64_t>(line.rate_bytes_per_s)));
  }
  const double left = seconds_left(line.bytes, line.expected_bytes, line.rate_bytes_per_s);
  if (left >= 0) {
    text +=
        "  " + format_time(std::chrono::milliseconds(static_cast<int64_t>(left * 1000))) + " left";
  }
  return text;
}

std::vector<std::string> progress_lines(const std::vector<ProgressLine>& lines, size_t columns,
                                        size_t rows, const TerminalStyle& style) {
  // The cursor is on the line below the last one.
  const size_t room = std::max<size_t>(rows, 2) - 1;
  const bool all_fit = lines.size() <= room;
  const size_t shown = all_fit ? lines.size() : room - 1;
  // If the lines do not all fit, processes that move come first.
  std::vector<const ProgressLine*> order;
  for (const ProgressLine& line : lines) order.push_back(&line);
  if (!all_fit) {
    std::stable_partition(order.begin(), order.end(), [](const ProgressLine* line) {
      return line->phase != "waiting" && line->phase != "complete" && line->phase != "stays";
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
  return {{"event", "progress"},
          {"time_ns", realtime_ns()},
          {"pid", line.pid},
          {"name", line.name},
          {"phase", line.phase},
          {"bytes", line.bytes},
          {"expected_bytes", line.expected_bytes},
          {"rate_bytes_per_s", line.rate_bytes_per_s},
          {"left_s", seconds_left(line.bytes, line.expected_bytes, line.rate_bytes_per_s)}};
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
    line.bytes = bytes_of[line.checkpoint];
    if (!line.memory.empty()) line.bytes += bytes_of[line.memory];
    line.meter.add(line.bytes, now);
    line.rate_bytes_per_s = line.meter.bytes_per_s();
  }
}

// Changes the lines of the processes that the event is about.
void MigrationProgress::follow(const json& event) {
  const std::string what = event.value("event", "");
  for (ProgressLine& line : lines_) {
    if (what == "warning" || line.pid != event.value("pid", 0)) continue;
    line.phase = what;
    line.checkpoint = event.value("checkpoint", line.checkpoint);
    line.memory = event.value("memory", line.memory);
    line.migration = event.value("migration", line.migration);
    line.post_copy = event.value("post_copy", line.post_copy);
    if (what == "sealed") line.bytes = event.value("bytes", line.bytes);
  }
  if (what != "aborted") return;
  for (ProgressLine& line : lines_) {
    if (line.migration == event.value("migration", "")) line.phase = "stays";
  }
}

void MigrationProgress::on_event(const json& event) {
  MutexLock lock(mutex_);
  const std::string what = event.value("event", "");
  follow(event);
  switch (style_) {
    case ProgressStyle::kTerminal:
      if (what == "warning" || what == "begun") print_above(event_text(event));
      draw();
      break;
    case ProgressStyle::kJson:
      print_to(stdout, "{}\n", json_text(event));
      break;
    case ProgressStyle::kLines:
      if (const std::string line = event_text(event); !line.empty()) {
        print_to(stderr, "{}\n", line);
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

// The next draw() puts the progress below `text`, so that `text` stays visible.
void MigrationProgress::print_above(const std::string& text) {
  const std::string first = to_first_line();
  print_as_it_is(stderr, fmt::format("{}\x1b[J{}\n", first, printable(text, Charset::kAscii)));
}

// Writes all lines in one call, so that a terminal never shows a part of them.
void MigrationProgress::draw() {
  if (style_ == ProgressStyle::kJson) {
    for (const ProgressLine& line : lines_) {
      if (is_dumping(line)) print_to(stdout, "{}\n", json_text(progress_json(line)));
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
