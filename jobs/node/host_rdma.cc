#include "jobs/node/host_rdma.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>

#include "base/whole_file.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns whether a port of the device is active: its state begins with the number 4.
bool is_active(const fs::path& device) {
  for (const auto& port : list_directory(device / "ports").value_or(DirectoryEntries())) {
    if (first_line(port.path() / "state").starts_with("4:")) return true;
  }
  return false;
}

}  // namespace

std::vector<VerbsDevice> find_verbs_devices(const std::string& nodes) {
  std::vector<VerbsDevice> found;
  for (const auto& entry : list_directory(nodes).value_or(DirectoryEntries())) {
    struct stat status = {};
    if (!entry.path().filename().string().starts_with("uverbs")) continue;
    if (stat(entry.path().c_str(), &status) != 0 || !S_ISCHR(status.st_mode)) continue;
    found.push_back({major(status.st_rdev), minor(status.st_rdev)});
  }
  return found;
}

std::string why_no_rdma(const RdmaPlaces& places) {
  bool has_device = false, has_active = false;
  for (const auto& device : list_directory(places.devices).value_or(DirectoryEntries())) {
    has_device = true;
    has_active = has_active || is_active(device.path());
  }
  if (!has_device) return "it has no RDMA device (rdma link)";
  if (!has_active) return "no port of its RDMA devices is active (rdma link)";
  if (find_verbs_devices(places.nodes).empty()) {
    return "it has no " + places.nodes + "/uverbs*: load the module ib_uverbs";
  }
  if (first_line(places.is_shared) != "Y") {
    return "its RDMA devices are not shared among network namespaces: rdma system set netns shared";
  }
  return "";
}

}  // namespace ppmr
