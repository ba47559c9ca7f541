#include "daemon/metrics/daemon_metrics.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "base/version.h"

namespace ppmr {
namespace {

using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct Number {
  const char* name;
  MetricType type;
  const char* field;  // JSON pointer to a number in the status
  double unit;        // one unit of the status field, in the unit of the metric
  const char* help;
};

constexpr auto kCounter = MetricType::Counter;
constexpr auto kGauge = MetricType::Gauge;

constexpr Number kOfBoth[] = {
    {"ppmr_uptime_seconds", kGauge, "/age_ms", 1e-3, "Time since the start of the daemon."},
    {"ppmr_migrations_open", kGauge, "/open_migrations/count", 1,
     "Migrations of this mount that were not over at the last report."},
    {"ppmr_transferred_bytes_total", kCounter, "/bytes", 1,
     "Bytes in place at the target and verified."},
    {"ppmr_wire_bytes_total", kCounter, "/wire_bytes", 1,
     "Bytes that the transferred bytes took on the wire: fewer if they were compressed."},
    {"ppmr_chunks_total", kCounter, "/chunks", 1, "Chunks sent (source) or landed (target)."},
    {"ppmr_stalls_total", kCounter, "/stalls", 1,
     "Waits of writers for a slot (source), of chunks for memory in the store (target)."},
    {"ppmr_rdma_registered_bytes", kGauge, "/rdma/registered_bytes", 1,
     "Memory registered with RDMA devices."},
};

constexpr Number kOfSource[] = {
    {"ppmr_inline_chunks_total", kCounter, "/inline_chunks", 1,
     "Chunks that travelled inside their announcement."},
    {"ppmr_reconnections_total", kCounter, "/reconnections", 1, "Connections that were reopened."},
    {"ppmr_pool_wait_seconds_total", kCounter, "/pool/wait_time_us", 1e-6,
     "Time that writers waited for a slot."},
};

constexpr Number kOfTarget[] = {
    {"ppmr_retransmitted_chunks_total", kCounter, "/pulled_again", 1,
     "Chunks fetched again: damaged, or lost with a connection."},
    {"ppmr_parked_reads", kGauge, "/parked_readers", 1, "Reads that wait for bytes."},
    {"ppmr_agents", kGauge, "/agents", 1, "Connections of migrations."},
    {"ppmr_store_limit_bytes", kGauge, "/store/limit_bytes", 1, "Memory that images may use."},
    {"ppmr_store_used_bytes", kGauge, "/store/used_bytes", 1, "Memory that images use."},
    {"ppmr_store_name_bytes", kGauge, "/store/name_bytes", 1, "Memory that names use."},
    {"ppmr_store_ready_bytes", kGauge, "/store/ready_bytes", 1, "Free memory touched in advance."},
    {"ppmr_store_spilled_bytes", kGauge, "/store/spilled_bytes", 1, "Images in the spill file."},
    {"ppmr_store_lent_bytes", kGauge, "/store/lent_bytes", 1,
     "Memory of images that pagers have borrowed."},
    {"ppmr_kept_checkpoints", kGauge, "/keep/checkpoints", 1,
     "Checkpoints that are complete in the keep directory."},
    {"ppmr_kept_bytes", kGauge, "/keep/bytes", 1, "Bytes of the kept checkpoints on the disk."},
    {"ppmr_keep_free_bytes", kGauge, "/keep/free_bytes", 1,
     "Free space on the disk of the keep directory, when a checkpoint was last written."},
    {"ppmr_keep_failures_total", kCounter, "/keep/failures", 1,
     "Attempts to keep or to remove a checkpoint that failed."},
    {"ppmr_keep_unreadable_files", kGauge, "/keep/unreadable_files", 1,
     "Files in the keep directory that cannot be used."},
    {"ppmr_kept_newest_age_seconds", kGauge, "/keep/newest_age_ms", 1e-3,
     "Time since the seal of the newest kept checkpoint; 0 without one."},
    {"ppmr_rdma_reads_total", kCounter, "/rdma/reads_posted", 1, "RDMA READs posted."},
    {"ppmr_rdma_read_bytes_total", kCounter, "/rdma/bytes_read", 1, "Bytes read by RDMA READ."},
};

using Labels = std::vector<ClientMetric::Label>;

void add(MetricFamily& family, double value, Labels labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family.type == kCounter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

double number(const json& status, const char* field) {
  const json::json_pointer pointer(field);
  if (!status.contains(pointer)) return 0;
  const json& value = status.at(pointer);
  return value.is_number() ? value.get<double>() : 0;
}

void add_numbers(std::vector<MetricFamily>& families, const json& status,
                 std::span<const Number> numbers) {
  for (const Number& entry : numbers) {
    MetricFamily family{entry.name, entry.help, entry.type, {}};
    add(family, number(status, entry.field) * entry.unit);
    families.push_back(std::move(family));
  }
}

MetricFamily pool_slots(const json& status) {
  MetricFamily family{"ppmr_pool_slots", "Slots of the pool; their sum is its size.", kGauge, {}};
  add(family, number(status, "/pool/free"), {{"state", "free"}});
  add(family, number(status, "/pool/in_use"), {{"state", "used"}});
  return family;
}

MetricFamily integrity_failures(const json& status) {
  MetricFamily family{"ppmr_integrity_failures_total",
                      "Chunks whose checksum or authentication tag was wrong, by the check.",
                      kCounter,
                      {}};
  add(family, number(status, "/crc_failures"), {{"check", "crc32c"}});
  add(family, number(status, "/aead_failures"), {{"check", "aes-256-gcm"}});
  return family;
}

struct EpochNumber {
  const char* name;
  const char* field;  // of a protected process
  double unit;
  const char* help;
};

constexpr EpochNumber kOfEpochs[] = {
    {"ppmr_epoch_age_seconds", "age_ms", 1e-3,
     "Age of the newest epoch of a protected process: the work that its node's loss would cost."},
    {"ppmr_epoch_interval_seconds", "every_ms", 1e-3, "How often a new epoch begins."},
    {"ppmr_epoch_pause_seconds", "pause_ms", 1e-3,
     "How long the process stood still for its newest epoch."},
    {"ppmr_epoch_memory_bytes", "bytes", 1, "Memory of the process in its newest epoch."},
    {"ppmr_epoch_sent_bytes", "sent_bytes", 1, "Bytes that were sent for the newest epoch."},
};

void add_epochs(std::vector<MetricFamily>& families, const json& status) {
  const json none = json::array();
  const auto found = status.find("protected");
  const json& processes = found != status.end() ? *found : none;
  for (const EpochNumber& entry : kOfEpochs) {
    MetricFamily family{entry.name, entry.help, kGauge, {}};
    for (const json& process : processes) {
      add(family, process.value(entry.field, 0.0) * entry.unit,
          {{"process", process.value("name", "")}});
    }
    families.push_back(std::move(family));
  }
  MetricFamily on_disk{"ppmr_epoch_on_disk_age_seconds",
                       "Age of the newest epoch on the disk of the partner: the work that the loss "
                       "of both nodes would cost.",
                       kGauge,
                       {}};
  for (const json& process : processes) {
    constexpr const char* kAge = "/on_disk/age_ms";
    if (!process.contains(json::json_pointer(kAge))) continue;
    add(on_disk, number(process, kAge) * 1e-3, {{"process", process.value("name", "")}});
  }
  families.push_back(std::move(on_disk));
}

const char* state_of_peer(const json& peer) {
  if (peer.contains("error")) return "failed";
  return peer.value("connected", false) ? "connected" : "disconnected";
}

MetricFamily sessions(const json& status) {
  MetricFamily family{"ppmr_sessions", "Sessions with peers.", kGauge, {}};
  for (const std::string transport : {"tcp", "verbs"}) {
    for (const std::string state : {"connected", "disconnected", "failed"}) {
      double count = 0;
      for (const json& peer : status.at("peers")) {
        if (peer.value("transport", "") == transport && state_of_peer(peer) == state) ++count;
      }
      add(family, count, {{"transport", transport}, {"state", state}});
    }
  }
  return family;
}

MetricFamily silence(const json& status) {
  MetricFamily family{"ppmr_peer_silence_seconds",
                      "Time since the last message of the peer that is silent for longest; 0 "
                      "without a peer.",
                      kGauge,
                      {}};
  double longest_ms = 0;
  for (const json& peer : status.at("peers")) {
    longest_ms = std::max(longest_ms, peer.value("silence_ms", 0.0));
  }
  add(family, longest_ms * 1e-3);
  return family;
}

MetricFamily checkpoints(const json& status, std::initializer_list<const char*> states) {
  MetricFamily family{"ppmr_checkpoints", "Checkpoints in the mount.", kGauge, {}};
  const json& all = status.at("checkpoints");
  for (const std::string state : states) {
    const auto count = std::count_if(all.begin(), all.end(), [&](const json& checkpoint) {
      return checkpoint.value("state", "") == state;
    });
    add(family, static_cast<double>(count), {{"state", state}});
  }
  return family;
}

}  // namespace

std::vector<MetricFamily> metrics_of_status(const json& status) {
  const std::string role = status.at("role");
  std::vector<MetricFamily> families;
  families.push_back({"ppmr_build_info", "1; the labels say what runs.", kGauge, {}});
  add(families.back(), 1, {{"version", kVersion}, {"role", role}});
  families.push_back(
      {"ppmr_draining", "1 while ppmr drain lets the daemon begin nothing.", kGauge, {}});
  add(families.back(), status.value("draining", false) ? 1 : 0);
  // Leaves the metric out if the credentials have no end, because 0 would raise an alarm.
  if (const json end = status.value("credentials_end_s", json()); end.is_number()) {
    families.push_back({"ppmr_credentials_expiry_seconds",
                        "Time until the first certificate or revocation list of this daemon ends; "
                        "negative: it has ended.",
                        kGauge,
                        {}});
    add(families.back(), end.get<double>() - static_cast<double>(::time(nullptr)));
  }
  families.push_back({"ppmr_program_replaced",
                      "1 if the program's file was replaced or removed since the start.",
                      kGauge,
                      {}});
  const bool is_replaced = status.value("/program/replaced"_json_pointer, false);
  add(families.back(), is_replaced ? 1 : 0);
  add_numbers(families, status, kOfBoth);
  families.push_back(sessions(status));
  families.push_back(silence(status));
  if (role == "source") {
    add_numbers(families, status, kOfSource);
    add_epochs(families, status);
    families.push_back(pool_slots(status));
    families.push_back(checkpoints(status, {"open", "sealed", "failed", "removed"}));
  } else {
    add_numbers(families, status, kOfTarget);
    families.push_back(integrity_failures(status));
    families.push_back(checkpoints(status, {"open", "complete", "sealed", "failed"}));
  }
  return families;
}

std::vector<MetricFamily> DaemonMetrics::Collect() const {
  std::vector<MetricFamily> families = metrics_of_status(status_());
  for (MetricFamily& family : tally_.Collect()) families.push_back(std::move(family));
  return families;
}

}  // namespace ppmr
