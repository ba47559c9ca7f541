// The main thread draws, and waits for keys and signals. Another thread asks the daemons, because a
// request to a daemon that does not answer takes a second.
#include "cli/watch_command.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <set>

#include "base/clock.h"
#include "cli/screen/screen.h"
#include "cli/status_samples.h"
#include "cli/watch_view.h"
#include "migration/records/record_store.h"

// ncurses.h defines macros with the names of functions. This file needs only the numbers of keys.
#define NCURSES_NOMACROS 1
#include <ncurses.h>

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kInterval{1000};
constexpr milliseconds kAnswerPoll{50};
constexpr size_t kRatesKept = 60;
// How long a finished migration stays on the screen.
constexpr int64_t kOverShownNs = 10'000'000'000;

// The records of migrations that are open or ended a moment ago.
class Migrations {
 public:
  explicit Migrations(std::string directory) : directory_(std::move(directory)) {}

  void read_into(WatchPage& page) {
    if (access(directory_.c_str(), F_OK) != 0) return;  // open() would create the directory
    auto store = RecordStore::open(directory_);
    auto records = store ? store->list(nullptr, known_as_over_) : tl::unexpected(store.error());
    if (!records) {
      page.no_records = records.error().message;
      return;
    }
    for (OwnershipRecord& record : *records) {
      const bool is_old = realtime_ns() - record.history().back().at_ns > kOverShownNs;
      if (is_over(record.state()) && is_old) {
        known_as_over_.insert(RecordStore::name_of(record.id, record.role));
      } else {
        page.notes.emplace(RecordStore::name_of(record.id, record.role),
                           read_notes(*store, record));
        page.migrations.push_back(std::move(record));
      }
    }
    // Puts the latest migration first.
    std::reverse(page.migrations.begin(), page.migrations.end());
  }

 private:
  const std::string directory_;
  std::set<std::string> known_as_over_;
};

std::string local_time() {
  const time_t now = time(nullptr);
  tm date{};
  char text[16] = "";
  if (localtime_r(&now, &date) != nullptr) strftime(text, sizeof text, "%T", &date);
  return text;
}

// Collects pages.
// Threads: one at a time.
class Collector {
 public:
  Collector(std::string mountpoint, std::string state_directory)
      : mountpoint_(std::move(mountpoint)), migrations_(std::move(state_directory)) {
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) == 0) node_ = name;
  }

  CommandResult<WatchPage> collect() {
    WatchPage page{node_, local_time(), {}, "", {}};
    const auto mounts = chosen_mounts(mountpoint_);
    if (!mounts) return tl::unexpected(mounts.error());
    migrations_.read_into(page);
    std::vector<StatusSample> now = sample_status(*mounts);
    std::map<std::string, std::deque<uint64_t>> rates;
    for (const StatusSample& sample : now) {
      StatusSample shown = sample;
      add_rates_since(before_, shown);
      std::deque<uint64_t>& kept = rates[sample.mount.mountpoint];
      kept = rates_[sample.mount.mountpoint];
      if (shown.status && shown.status->contains("rate_bytes_per_s")) {
        kept.push_back(shown.status->at("rate_bytes_per_s"));
        if (kept.size() > kRatesKept) kept.pop_front();
      }
      page.mounts.push_back({sample.mount, std::move(shown.status), kept});
    }
    rates_ = std::move(rates);
    before_ = std::move(now);
    return page;
  }

 private:
  const std::string mountpoint_;
  std::string node_;
  Migrations migrations_;
  std::vector<StatusSample> before_;
  std::map<std::string, std::deque<uint64_t>> rates_;
};

std::future<CommandResult<WatchPage>> collect_in_background(Collector& collector) {
  return std::async(std::launch::async, [&collector] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    return collector.collect();
  });
}

// Changes the number of lines that the view skips.
void scroll(int key, size_t page_size, size_t& skipped) {
  const auto up = [&](size_t count) { skipped -= std::min(skipped, count); };
  switch (key) {
    case KEY_UP:
    case 'k':
      return up(1);
    case KEY_PPAGE:
      return up(page_size);
    case KEY_HOME:
      return up(skipped);
    case KEY_DOWN:
    case 'j':
      skipped += 1;
      return;
    case KEY_NPAGE:
    case ' ':
      skipped += page_size;
      return;
    default:
      return;
  }
}

class Watch {
 public:
  Watch(Screen& screen, Collector& collector, Charset charset)
      : screen_(screen), collector_(collector), charset_(charset) {}
  // Runs until the user or a signal ends the view. Errors: why the mounts or the records cannot be
  // read.
  CommandResult<ExitCode> run();

 private:
  void draw();

  Screen& screen_;
  Collector& collector_;
  const Charset charset_;
  WatchPage page_;
  bool has_page_ = false;
  size_t skipped_ = 0;
};

void Watch::draw() {
  if (!has_page_) return;
  const auto lines = watch_lines(page_, screen_.width(), charset_);
  screen_.draw(window_of(lines, screen_.height(), skipped_));
}

CommandResult<ExitCode> Watch::run() {
  auto answer = collect_in_background(collector_);
  auto next = Clock::now() + kInterval;
  for (;;) {
    const bool is_asking = answer.valid();
    const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
    const auto event = screen_.wait(is_asking ? kAnswerPoll : std::max(left, milliseconds(0)));
    switch (event) {
      case Screen::Event::kInterrupted:
        return ExitCode::kInterrupted;
      case Screen::Event::kEnded:
        return ExitCode::kSuccess;
      case Screen::Event::kKey:
        if (screen_.key() == 'q' || screen_.key() == 'Q') return ExitCode::kSuccess;
        scroll(screen_.key(), screen_.height(), skipped_);
        draw();
        break;
      case Screen::Event::kChanged:
        draw();
        break;
      case Screen::Event::kNone:
        break;
    }
    if (is_asking && answer.wait_for(milliseconds(0)) == std::future_status::ready) {
      auto page = answer.get();
      if (!page) return tl::unexpected(page.error());
      page_ = std::move(*page);
      has_page_ = true;
      draw();
    }
    if (!answer.valid() && Clock::now() >= next) {
      next = Clock::now() + kInterval;
      answer = collect_in_background(collector_);
    }
  }
}

}  // namespace

int watch_status(const std::string& mountpoint, const std::string& state_directory, bool colours) {
  const Charset charset = charset_of_environment();
  Collector collector(mountpoint, state_directory);
  // This check comes before the screen opens, so that an error at the beginning is printed on the
  // normal terminal.
  if (const auto mounts = chosen_mounts(mountpoint); !mounts) {
    return report("status", mounts.error(), false);
  }
  CommandResult<ExitCode> result = ExitCode::kSuccess;
  {
    auto screen = Screen::open(colours, charset);
    if (!screen) return report("status", {ExitCode::kFailure, screen.error().message}, false);
    result = Watch(*screen, collector, charset).run();
  }
  return result ? to_int(*result) : report("status", result.error(), false);
}

}  // namespace ppmr
