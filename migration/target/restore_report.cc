#include "migration/target/restore_report.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/relay/audit_events.h"
#include "migration/target/tree_arrival.h"
#include "restart_loader/pager/pager.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kDaemonPatience{2000};

void count(const OwnershipRecord& record, size_t tree, const RestoreOutcome& outcome) {
  const auto socket = control_socket_of(record);
  if (!socket) return;
  request::NoteOutcome note{.result = outcome.outcome, .seconds = {}, .page_faults = {}};
  if (outcome.outcome == "running") {
    const int64_t running_ns = record.trees[tree].running_ns;
    if (outcome.sealed_ns > 0 && running_ns >= outcome.sealed_ns) {
      note.seconds["restart"] = {static_cast<double>(running_ns - outcome.sealed_ns) / 1e9};
    }
  }
  if (outcome.outcome == "complete") {
    const std::string text = read_whole_file(outcome.work + kFaultTimesFile).value_or("");
    const auto times = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    note.page_faults = read_fields<request::PageFaults>(times);
  }
  (void)call(*socket, to_request(note), kDaemonPatience);
}

}  // namespace

void report_restore(const OwnershipRecord& record, size_t tree, const RestoreOutcome& outcome) {
  audit_restart(record, tree, outcome.outcome, outcome.reason);
  if (!record.plan.is_rehearsal) count(record, tree, outcome);
}

}  // namespace ppmr
