#include "restart_loader/cli/migration_progress.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "mount/command_line/size_option.h"
#include "mount/control/control_client.h"
#include "mount/control/json_text.h"
#include "restart_loader/cli/migration_report.h"
#include "restart_loader/migration/output.h"
#include "restart_loader/records/ownership_record.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTerminalInterval{200};
constexpr milliseconds kJsonInterval{500};
constexpr milliseconds kDaemonTimeout{500};

double seconds_left(const ProgressLine& line) {
  if (line.rate_bytes_per_s <= 0 || line.expected_bytes <= line.bytes) return -1;
  return static_cast<double>(line.expected_bytes - line.bytes) / line.rate_bytes_per_s;
}

bool is_dumping(const ProgressLine& line) {
  return line.phase == "dumping" || line.phase == "pre-copying";
}

}  // namespace

std::string progress_text(const ProgressLine& line) {
  std::string text = fmt::format("{:>8} {:<15} {:<11}", line.pid, line.name, line.phase);
  if (line.bytes == 0) return text;
  text += " " + format_size(line.bytes);
  if (!is_dumping(line)) return text;
  if (line.expected_bytes > line.bytes) text += " of " + format_size(line.expected_bytes);
  if (line.rate_bytes_per_s > 0) {
    text += fmt::format(", {}/s", format_size(static_cast<uint64_t>(line.rate_bytes_per_s)));
  }
  if (const double left = seconds_left(line); left >= 0)
    text += fmt::format(", {:.1f} s left", left);
  return text;
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
          {"left_s", seconds_left(line)}};
}

void MigrationProgress::add_process(int pid, const std::string& name, uint64_t expected_bytes) {
  std::lock_guard lock(mutex_);
  lines_.push_back({.pid = pid, .name = name, .expected_bytes = expected_bytes});
}

void MigrationProgress::start() {
  if (style_ != ProgressStyle::kLines) thread_ = std::thread([this] { watch(); });
}

void MigrationProgress::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MigrationProgress::watch() {
  const milliseconds interval =
      style_ == ProgressStyle::kTerminal ? kTerminalInterval : kJsonInterval;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval, [this] { return stopping_; })) {
    lock.unlock();
    query_daemon();
    lock.lock();
    draw();
  }
  if (style_ == ProgressStyle::kTerminal) draw();
}

void MigrationProgress::query_daemon() {
  const auto status = call(mount_.source, {{"op", "status"}}, kDaemonTimeout);
  if (!status) return;
  const auto now = std::chrono::steady_clock::now();
  std::map<std::string, uint64_t> bytes_of;  // of checkpoints, by name
  for (const json& checkpoint : status->value("checkpoints", json::array())) {
    bytes_of[checkpoint.value("name", "")] = checkpoint.value("bytes", uint64_t{0});
  }
  std::lock_guard lock(mutex_);
  for (ProgressLine& line : lines_) {
    if (!bytes_of.contains(line.checkpoint)) continue;
    uint64_t bytes = bytes_of[line.checkpoint];
    if (!line.memory.empty()) bytes += bytes_of[line.memory];
    const double seconds = std::chrono::duration<double>(now - line.updated_at).count();
    if (line.bytes > 0 && bytes >= line.bytes && seconds > 0) {
      line.rate_bytes_per_s = static_cast<double>(bytes - line.bytes) / seconds;
    }
    line.bytes = bytes;
    line.updated_at = now;
  }
}

void MigrationProgress::on_event(const json& event) {
  std::lock_guard lock(mutex_);
  const bool is_warning = event.value("event", "") == "warning";
  for (ProgressLine& line : lines_) {
    if (is_warning || line.pid != event.value("pid", 0)) continue;
    line.phase = event.value("event", "");
    line.checkpoint = event.value("checkpoint", line.checkpoint);
    line.memory = event.value("memory", line.memory);
    line.migration = event.value("migration", line.migration);
    if (line.phase == "sealed") line.bytes = event.value("bytes", line.bytes);
  }
  if (event.value("event", "") == "aborted") {
    for (ProgressLine& line : lines_) {
      if (line.migration == event.value("migration", "")) line.phase = "stays";
    }
  }
  switch (style_) {
    case ProgressStyle::kTerminal:
      if (is_warning) print_above(event_text(event));
      draw();
      break;
    case ProgressStyle::kJson:
      print_to(stdout, "{}\n", json_text(event));
      break;
    case ProgressStyle::kLines:
      if (const std::string line = event_text(event); !line.empty()) {
        print_to(stderr, "{}\n", line);
      }
  }
}

void MigrationProgress::move_to_first_line() {
  if (drawn_ > 0) print_to(stderr, "\x1b[{}A", drawn_);
  drawn_ = 0;
}

// The next draw() puts the progress below `text`, so that `text` stays visible.
void MigrationProgress::print_above(const std::string& text) {
  move_to_first_line();
  print_to(stderr, "\x1b[J{}\n", text);
}

void MigrationProgress::draw() {
  if (style_ == ProgressStyle::kJson) {
    for (const ProgressLine& line : lines_) {
      if (is_dumping(line)) print_to(stdout, "{}\n", json_text(progress_json(line)));
    }
    return;
  }
  move_to_first_line();
  for (const ProgressLine& line : lines_) print_to(stderr, "\x1b[2K{}\n", progress_text(line));
  drawn_ = lines_.size();
}

}  // namespace ppmr
