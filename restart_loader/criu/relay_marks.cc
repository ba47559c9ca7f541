#include "restart_loader/criu/relay_marks.h"

#include <unistd.h>

#include <fstream>

#include "processes/process_identity.h"

namespace ppmr {
namespace {

std::string path_of(const std::string& work_directory, RelayMark mark) {
  switch (mark) {
    case RelayMark::kRuntimeStarted:
      return work_directory + "/runtime-started";
    case RelayMark::kContainerCreated:
      return work_directory + "/container-made";
    case RelayMark::kLetGo:
      return work_directory + "/let-go";
    case RelayMark::kResumed:
      return work_directory + "/resumed";
    case RelayMark::kRunsSince:
      return work_directory + "/runs-since";
    case RelayMark::kResponded:
      return work_directory + "/responded";
  }
  return {};
}

bool is_there(const std::string& work_directory, RelayMark mark) {
  return access(path_of(work_directory, mark).c_str(), F_OK) == 0;
}

bool is_of_this_boot(const std::string& work_directory, RelayMark mark) {
  std::ifstream file(path_of(work_directory, mark));
  std::string boot;
  return std::getline(file, boot) && !boot.empty() && read_boot_id().starts_with(boot);
}

// Returns whether CRIU (3.17.1, 4.2.1) reports that it did not get the permission to continue. In
// that case CRIU kills what it has restored. CRIU's other report, "Killing processes because of
// failure on restore", proves nothing, because CRIU may also fail while it releases the tasks.
bool criu_gave_up_before_release(const std::string& work_directory) {
  std::ifstream log(work_directory + "/restore.log");
  for (std::string line; std::getline(log, line);) {
    if (line.find("Aborting restore due to post-restore script") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

Status leave_mark(const std::string& work_directory, RelayMark mark, const std::string& content) {
  const std::string path = path_of(work_directory, mark);
  std::ofstream file(path);
  if (!file) return system_failure("create", path);
  file << content;
  file.close();
  if (!file) return system_failure("write", path);
  return {};
}

bool was_let_go(const std::string& work_directory) {
  return is_there(work_directory, RelayMark::kLetGo);
}

bool may_have_run(const std::string& work_directory, CriuEnd end) {
  if (!was_let_go(work_directory)) return false;
  if (is_there(work_directory, RelayMark::kResumed)) return true;
  // In this case a signal has killed the relay between its mark and its answer to CRIU.
  if (criu_gave_up_before_release(work_directory)) return false;
  if (end == CriuEnd::kInVain) return false;
  return end == CriuEnd::kKilled || !is_there(work_directory, RelayMark::kResponded);
}

int64_t runs_since_ns(const std::string& work_directory) {
  std::ifstream file(path_of(work_directory, RelayMark::kRunsSince));
  int64_t at = 0;
  return file >> at ? at : 0;
}

void forget_restore(const std::string& work_directory) {
  for (const RelayMark mark :
       {RelayMark::kLetGo, RelayMark::kResumed, RelayMark::kRunsSince, RelayMark::kResponded}) {
    unlink(path_of(work_directory, mark).c_str());
  }
}

MadeContainer made_container(const std::string& work_directory) {
  if (is_of_this_boot(work_directory, RelayMark::kContainerCreated)) return MadeContainer::kWhole;
  if (is_of_this_boot(work_directory, RelayMark::kRuntimeStarted)) return MadeContainer::kPartly;
  return MadeContainer::kNone;
}

void forget_made_container(const std::string& work_directory) {
  for (const RelayMark mark : {RelayMark::kContainerCreated, RelayMark::kRuntimeStarted})
    unlink(path_of(work_directory, mark).c_str());
}

}  // namespace ppmr
