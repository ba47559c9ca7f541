// The name and properties of a runc container, for the record of a migration and the preflight.
#pragma once

#include <string>

namespace ppmr {

// The runc container whose processes are the tree. If the name is empty, the tree is not a
// container.
struct ContainerRecord {
  std::string name;
  std::string bundle;   // the container's directory, with the same path on both nodes
  std::string created;  // source: creation time; distinguishes containers of the same name
};

// Returns whether runc accepts `name` for a container. A name from a peer must not be a path or an
// option.
bool is_container_name(const std::string& name);

}  // namespace ppmr
