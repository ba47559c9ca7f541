#include "migration/target/accepted_images.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/relay/held_locks.h"
#include "migration/target/takeover.h"
#include "migration/target/tree_arrival.h"
#include "preflight/policy/check_restart.h"
#include "preflight/policy/restart_policy.h"
#include "processes/carried/carried_state.h"
#include "processes/carried/inherited_attributes.h"
#include "restart_loader/criu/criu_library.h"
#include "restart_loader/images/pstree_image.h"
#include "restart_loader/images/tree_images.h"

namespace ppmr {
namespace {

constexpr const char* kNodesOfMemory = "/sys/devices/system/node/has_memory";

constexpr std::chrono::milliseconds kDaemonPatience{2000};

Result<SealedImages> open_images(const OwnershipRecord& record, const TreeRecord& tree,
                                 uint64_t inode) {
  if (is_taken_over(tree)) return SealedImages::open_epoch(images_path(record, tree));
  auto socket = control_socket_of(record);
  if (!socket) return failure(socket.error());
  return SealedImages::open({.control_socket = *socket,
                             .mountpoint = record.mountpoint,
                             .checkpoint = tree.checkpoint,
                             .inode = inode});
}

Status note_parent_death(const TreeRecord& tree, AcceptedImages& accepted) {
  const SealedImages& images = accepted.images;
  const auto parents = read_pstree(images.path() + "/pstree.img");
  const pid_t root = parents && parents->contains(tree.root) ? tree.root : 1;
  const auto dies = dies_with_parent(images.path(), images.bundle(), root);
  if (!dies) return {};  // CRIU reads the image, too, and reports what is wrong
  const bool is_container = !tree.container.name.empty();
  accepted.needs_parent = *dies && !is_container;
  if (!*dies || !is_container) return {};
  return failure(ENOTSUP,
                 "the first process of the container has asked for a signal when its parent "
                 "ends (PR_SET_PDEATHSIG), and runc, its parent here, ends: start the container "
                 "without this request");
}

// Writes the file of inherited state. CRIU waits already, and reads the file when it begins to
// restore.
Status leave_inherited(const std::optional<carried::State>& state, const std::string& work) {
  const std::string path = work + "/" + kInherited;
  const auto nodes = read_whole_file(kNodesOfMemory);  // none without CONFIG_NUMA
  const std::string text =
      state ? inherited_text(state->inherited(), nodes.value_or("")) : std::string();
  unlink(path.c_str());
  if (text.empty()) return {};
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  return file ? Status{} : system_failure("write", path);
}

// If the root is not a child of CRIU, CRIU itself traces it, so the hook cannot take the locks of
// processes.
Status note_locks(bool is_container, const std::string& path, carried::State& state,
                  AcceptedImages& accepted) {
  if (carries_process_locks(state) && (is_container || accepted.needs_parent)) {
    if (Status left = leave_process_locks(state); !left) return left;
    if (Status written = write_carried_state(path, state); !written) return written;
  }
  accepted.has_locks = carries_locks(state);
  accepted.has_process_locks = carries_process_locks(state);
  return {};
}

Status take_carried(const RestartPolicy& policy, bool is_container, const std::string& work,
                    AcceptedImages& accepted) {
  const std::string path = work + "/" + kCarriedStateFile;
  unlink(path.c_str());
  const ImageBundle* const bundle = accepted.images.bundle();
  const auto* const bundled = bundle != nullptr ? bundle->find(kCarriedStateFile) : nullptr;
  std::error_code none;
  if (bundled != nullptr) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bundled->data()),
               static_cast<std::streamsize>(bundled->size()));
  } else {
    std::filesystem::copy_file(accepted.images.path() + "/" + kCarriedStateFile, path, none);
  }
  auto state = load_carried_state(path);
  if (!state) return failure(state.error());
  if (*state) {
    if (Status noted = note_locks(is_container, path, **state, accepted); !noted) return noted;
  }
  if (Status left = leave_inherited(*state, work); !left) return left;
  if (policy.everything || policy.accepts_root() || !*state) return {};
  const std::string privilege = privilege_in(**state);
  if (privilege.empty()) return {};
  return failure(EPERM,
                 fmt::format("the tree has {}, which only root may set: start the target with "
                             "--allow-root-restart",
                             privilege));
}

// Writes to the log of the target's daemon.
void note_refusal(const OwnershipRecord& record, const TreeRecord& tree, const Error& error) {
  const auto socket = control_socket_of(record);
  if (!socket) return;
  (void)call(*socket,
             to_request(request::NoteRefusal{.checkpoint = tree.checkpoint,
                                             .process = tree.root,
                                             .peer = record.peer,
                                             .reason = error.message}),
             kDaemonPatience);
}

}  // namespace

Result<AcceptedImages> accept_images(const OwnershipRecord& record, size_t tree_number,
                                     uint64_t inode, const std::string& work) {
  const TreeRecord& tree = record.trees[tree_number];
  auto policy = parse_restart_policy(record.restart_policy);
  if (!policy) return failure(policy.error());
  auto images = open_images(record, tree, inode);
  if (!images) {
    note_refusal(record, tree, images.error());
    return failure(images.error());
  }
  AcceptedImages accepted{std::move(*images)};
  Status done = check_restart(*policy, {.images = accepted.images.path(),
                                        .small_images = accepted.images.bundle(),
                                        .bundle = tree.container.bundle,
                                        .criu_options = record.criu_options});
  if (done) done = note_parent_death(tree, accepted);
  if (done) done = take_carried(*policy, !tree.container.name.empty(), work, accepted);
  if (done) return accepted;
  Error error = accepted.images.with_names(done.error());
  note_refusal(record, tree, error);
  return failure(std::move(error));
}

}  // namespace ppmr
