#include "restart_loader/images/tree_namespaces.h"

#include <fmt/format.h>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kIdsMagic = 0x54432030;  // from criu/include/magic.h

}  // namespace

Result<TreeNamespaces> read_namespaces(const std::string& directory, pid_t root) {
  const std::string of_node = directory + "/inventory.img";
  auto bytes = read_whole_file(of_node);
  if (!bytes) return failure(bytes.error());
  auto inventory = ImageReader::of_inventory(of_node, std::move(*bytes));
  if (!inventory) return failure(inventory.error());
  criu::inventory_entry node;
  if (Status read = inventory->read(node); !read) return failure(read.error());
  const std::string of_root = fmt::format("{}/ids-{}.img", directory, root);
  bytes = read_whole_file(of_root);
  if (!bytes) return failure(bytes.error());
  auto image = ImageReader::of(of_root, std::move(*bytes), kIdsMagic);
  if (!image) return failure(image.error());
  criu::ids_entry ids;
  if (Status read = image->read(ids); !read) return failure(read.error());
  return TreeNamespaces{.has_own_pids = ids.pid_ns_id() != node.root_ids().pid_ns_id(),
                        .node_network = node.root_ids().net_ns_id()};
}

}  // namespace ppmr
