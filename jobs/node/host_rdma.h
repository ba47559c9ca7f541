// The RDMA devices of this host for job nodes. A device belongs to the network namespace of the
// host. A job node has its own network namespace, and uses the device through the files in
// /dev/infiniband. The kernel permits that only if it shares devices among all network namespaces,
// as it does by default.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

// Where the kernel and udev show devices. Only tests use other places.
struct RdmaPlaces {
  std::string nodes = "/dev/infiniband";
  std::string devices = "/sys/class/infiniband";
  std::string is_shared = "/sys/module/ib_core/parameters/netns_mode";
};

// A character device for verbs.
struct VerbsDevice {
  unsigned major = 0, minor = 0;
};

// Returns the devices for verbs (uverbs*) of this host. Empty: there is none.
std::vector<VerbsDevice> find_verbs_devices(const std::string& nodes = RdmaPlaces().nodes);

// Returns why job nodes on this host cannot use RDMA, with a remedy. Empty: they can.
std::string why_no_rdma(const RdmaPlaces& places = {});

}  // namespace ppmr
