// A runc container, as the record of a migration and the checks before a move name it.
#pragma once

#include <string>

namespace ppmr {

// The runc container whose processes are the tree. Without a name the tree is not a container.
struct ContainerRecord {
  std::string name;
  std::string bundle;   // the container's directory, with the same path on both nodes
  std::string created;  // source: creation time; a later container of the same name has another
};

// Whether runc accepts the name for a container. Names from a peer must not be paths or options.
bool is_container_name(const std::string& name);

}  // namespace ppmr
