#include "migration/source/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number_file.h"
#include "base/whole_file.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "processes/memory/pace.h"
#include "processes/memory/slow_down.h"
#include "processes/memory/small_ranges.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

// Reading a slot takes a millisecond, and seconds if the memory has to be swapped in.
constexpr milliseconds kReaderPatience{30'000};
constexpr size_t kCopyBytes = size_t{1} << 20;

}  // namespace

Status defer_errors(const MountEntry& mount, const std::string& checkpoint) {
  auto deferred = ask(mount, to_request(request::DeferErrors{checkpoint}));
  if (!deferred) return failure(EIO, deferred.error().message);
  return {};
}

Result<SealedTree> seal_checkpoint(const MountEntry& mount, const std::string& checkpoint,
                                   milliseconds patience) {
  const auto sealed = ask_at_length(mount, to_request(request::Commit{checkpoint, {}}), patience,
                                    Timeout::kWithoutProgress);
  if (!sealed) {
    return failure(EIO, "seal the checkpoint " + checkpoint + ": " + sealed.error().message);
  }
  return SealedTree{sealed->value("bytes", uint64_t{0}), sealed->value("files", uint64_t{0})};
}

Result<MemoryFile> MemoryFile::create(MemoryFilePlace place) {
  if (!place.local_file.empty()) return create_local(std::move(place));
  MemoryFile memory;
  memory.place_ = std::move(place);
  const std::string path = memory.place_.mount.mountpoint + "/" + memory.place_.checkpoint;
  const UniqueFd created(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!created) return system_failure("create the memory checkpoint", path);
  if (Status deferred = defer_errors(memory.place_.mount, memory.place_.checkpoint); !deferred) {
    return failure(deferred.error());
  }
  // This open comes after defer_errors(). So closing the file needs no answer from the daemon,
  // which may be stopped.
  memory.file_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!memory.file_) return system_failure("open the memory checkpoint", path);
  return memory;
}

Result<MemoryFile> MemoryFile::create_local(MemoryFilePlace place) {
  MemoryFile memory;
  memory.place_ = std::move(place);
  const std::string& path = memory.place_.local_file;
  memory.file_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!memory.file_) return system_failure("create the memory of an epoch", path);
  memory.buffer_.resize(kCopyBytes);
  return memory;
}

Status MemoryFile::copy(const PageIndex& index, MemoryReader::Tree tree, uint64_t file_offset,
                        const PaceFiles& files) {
  auto reader = MemoryReader::create(index, tree);
  if (!reader) return failure(reader.error());
  PacedReading pace(files);
  for (uint64_t at = 0; at < index.memory_bytes;) {
    const auto part =
        std::span(buffer_).first(std::min<uint64_t>(kCopyBytes, index.memory_bytes - at));
    if (Status read = reader->read(at, part); !read) return read;
    const Status written =
        write_all(file_, part, file_offset + at, "the memory of an epoch to " + place_.local_file);
    if (!written) return written;
    at += part.size();
    (void)pace.wait_after(part.size());
  }
  return {};
}

Result<Round> MemoryFile::send_round(LiveMemory& live, pid_t root, const RoundOptions& options) {
  const auto began = Clock::now();
  const uint64_t max_rate_bytes_per_s = read_number(place_.pace.rate);
  const std::string& share = place_.pace.cpu_share;
  const std::string rested = share.empty() ? "" : share + kRestedSuffix;
  unlink(rested.c_str());
  const auto took = [&] {
    return Clock::now() - began - nanoseconds(static_cast<int64_t>(read_number(rested)));
  };
  if (is_local()) {
    const uint64_t file_offset = live.sent_bytes() - place_.first_offset;
    const auto index = live.next_round(root);
    if (!index) return failure(index.error());
    if (options.on_begin) options.on_begin(index->memory_bytes);
    const Status copied = copy(*index, MemoryReader::Tree::kRuns, file_offset, place_.pace);
    if (!copied) return failure(copied.error());
    return Round{index->memory_bytes, took(), max_rate_bytes_per_s};
  }
  const std::string path = fmt::format("{}/{}-{}", place_.work, kPageIndexFile, rounds_);
  PaceFiles pace = place_.pace;
  if (!options.may_pause) pace.pause.clear();
  auto reader = PageReaderProcess::start({path, pace}, MemoryReader::Tree::kRuns);
  if (!reader) return failure(reader.error());
  const uint64_t file_offset = live.sent_bytes() - place_.first_offset;
  const auto index = live.next_round(root);
  if (!index) return failure(index.error());
  if (Status written = write_page_index(path, *index); !written) return failure(written.error());
  if (options.on_begin) options.on_begin(index->memory_bytes);
  request::SendMemory request{.checkpoint = place_.checkpoint,
                              .memory_bytes = index->memory_bytes,
                              .file_offset = file_offset,
                              .first = {},
                              .reader_timeout = kReaderPatience};
  if (!pace.pause.empty()) request.reader_timeout = {};  // a pause can be long
  // Slows the tree down only while the round is sent: before and after that, the tracker stops
  // threads, too.
  std::optional<SlowDown> slowed(std::in_place, root, options.slow_down_percent, [&] {
    return !pace.pause.empty() && read_number(pace.pause) != 0;
  });
  const Status sent = ask_to_send(request, *reader);
  slowed.reset();
  unlink(path.c_str());
  if (!sent) return failure(EIO, sent.error().message);
  ++rounds_;
  return Round{index->memory_bytes, took(), max_rate_bytes_per_s, options.slow_down_percent};
}

Status MemoryFile::start_anew() {
  close();
  const std::string path = place_.mount.mountpoint + "/" + place_.checkpoint;
  if (unlink(path.c_str()) != 0) return system_failure("remove the memory checkpoint", path);
  auto again = create(place_);
  if (!again) return failure(again.error());
  file_ = std::move(again->file_);
  return {};
}

Status MemoryFile::prepare_frozen() {
  if (is_local()) return {};
  auto reader = PageReaderProcess::start({place_.work + "/" + kPageIndexFile, {}});
  if (!reader) return failure(reader.error());
  reader_.emplace(std::move(*reader));
  return {};
}

// A page reader reads the memory from the processes into the pool of the daemon.
Status MemoryFile::ask_to_send(const request::SendMemory& request, PageReaderProcess& reader,
                               std::optional<milliseconds> patience) const {
  const auto sent = ask_at_length(place_.mount, to_request(request), patience, Timeout::kTotal,
                                  reader.take_ends());
  if (!sent) return failure(EIO, "send the memory of the tree: " + sent.error().message);
  return {};
}

Status MemoryFile::send_frozen(const FrozenMemoryIndex& index, SentWhen when,
                               std::optional<milliseconds> patience) {
  if (is_local()) {
    const Status copied =
        copy(index.unsent, MemoryReader::Tree::kFrozen, index.sent_bytes - place_.first_offset, {});
    close();
    return copied;
  }
  const std::string path = place_.work + "/" + kPageIndexFile;
  if (Status written = write_page_index(path, index.unsent); !written) return written;
  request::SendMemory request{.checkpoint = place_.checkpoint,
                              .memory_bytes = index.unsent.memory_bytes,
                              .file_offset = index.sent_bytes - place_.first_offset,
                              .first = {},
                              .reader_timeout = {}};
  if (when == SentWhen::kInThePool) request.until = request::SendMemory::kUntilRead;
  if (when == SentWhen::kFollows) {
    for (const PageRange& range : small_ranges(index.unsent)) {
      request.first.emplace_back(range.offset, range.bytes());
    }
  } else {  // after the decision, the migration waits even for a reader that is stopped
    request.reader_timeout = kReaderPatience;
  }
  const Status sent = ask_to_send(request, *reader_, patience);
  close();
  return sent;
}

Status copy_in_rounds(MemoryFile& file, LiveMemory& live, pid_t root, const RoundsOptions& options,
                      std::vector<Round>& rounds) {
  const auto began = Clock::now();
  const auto paused = [&] {
    return options.time_paused ? options.time_paused() : std::chrono::nanoseconds(0);
  };
  uint64_t slow_down_percent = 0;
  for (;;) {
    const auto paused_before = paused();
    const auto begins = [&](uint64_t bytes) {
      if (options.on_begin) options.on_begin(static_cast<unsigned>(rounds.size()), bytes);
    };
    auto round = file.send_round(
        live, root,
        {.may_pause = true, .slow_down_percent = slow_down_percent, .on_begin = begins});
    if (!round) return failure(round.error());
    round->took -= std::min<std::chrono::nanoseconds>(paused() - paused_before, round->took);
    rounds.push_back(*round);
    if (options.on_round) options.on_round(static_cast<unsigned>(rounds.size() - 1), round->bytes);
    const auto limits = options.limits();
    if (!limits) return failure(limits.error());
    const RoundDecision decision =
        decide_round(rounds, live.count_written_bytes(), Clock::now() - began - paused(), *limits);
    if (decision.next == NextStep::kCancel) return failure(ETIME, decision.why);
    if (!decision.why.empty()) options.on_warning(decision.why);
    if (decision.next == NextStep::kFreeze) return {};
    if (decision.slow_down_percent > slow_down_percent) {
      options.on_warning(fmt::format(
          "it writes its memory as fast as it can be sent: it stands still for {}% of the time "
          "while the next rounds are sent (--slow-down)",
          decision.slow_down_percent));
    }
    slow_down_percent = decision.slow_down_percent;
  }
}

}  // namespace ppmr
