#include "restart_loader/pager/restore_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/whole_file.h"
#include "base/without_exceptions.h"
#include "mount/detached_mount.h"

namespace ppmr {
namespace {

// Opens the same directory by its name in the mount namespace of the caller. `path` may lead
// through a descriptor of another process to a mount in that process's namespace. Returns an
// invalid descriptor if another directory has that name now.
UniqueFd open_by_name(const std::string& path) {
  const auto open_directory = [](const std::string& name) {
    return UniqueFd(open(name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  };
  const UniqueFd wanted = open_directory(path);
  std::error_code error;
  UniqueFd named = open_directory(std::filesystem::canonical(path, error));
  struct stat is {
  }, was{};
  if (!wanted || !named || fstat(wanted.get(), &was) != 0 || fstat(named.get(), &is) != 0) {
    return UniqueFd();
  }
  const bool same = is.st_dev == was.st_dev && is.st_ino == was.st_ino;
  if (!same) errno = ESTALE;
  return same ? std::move(named) : UniqueFd();
}

// Makes an overlay of two directories that is mounted nowhere. Before Linux 6.15 the kernel accepts
// only directories in the mount namespace of the caller. So this function moves `upper` to a mount
// namespace that ends with the call, over the directory `place`. Errors: as detached_mount().
Result<UniqueFd> detached_overlay(const UniqueFd& upper, const std::string& lower,
                                  const std::string& place) {
  Result<UniqueFd> overlay =
      system_failure("create a mount namespace for the images in", lower, EINVAL);
  const auto open_directory = [](const std::string& path) {
    return UniqueFd(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  };
  const auto make = [&]() -> Result<UniqueFd> {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return system_failure("create a mount namespace for the images in", lower);
    }
    const UniqueFd below = open_by_name(lower);
    if (!below || move_mount(upper.get(), "", AT_FDCWD, place.c_str(), MOVE_MOUNT_F_EMPTY_PATH)) {
      return system_failure("mount the images at", below ? place : lower);
    }
    const UniqueFd above = open_directory(place);
    if (!above) return system_failure("open", place);
    return detached_mount(
        "overlay", {{"lowerdir", path_of_descriptor(above) + ":" + path_of_descriptor(below)}});
  };
  std::thread([&] { overlay = without_exceptions(make); }).join();
  return overlay;
}

Status write_image(const UniqueFd& directory, const std::string& name,
                   std::span<const std::byte> bytes) {
  const UniqueFd file(
      openat(directory.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return system_failure("unpack the images: create", name);
  return write_all(file, bytes, 0, "the unpacked image " + name);
}

}  // namespace

Result<RestoreImages> RestoreImages::open(std::string directory, const std::string& bundle) {
  RestoreImages images(std::move(directory));
  if (bundle.empty()) return images;
  const UniqueFd file(::open(bundle.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", bundle);
  const auto opened = ImageBundle::open(file);
  if (!opened) return failure(opened.error());
  if (Status unpacked = images.unpack(*opened); !unpacked) return failure(unpacked.error());
  return images;
}

Status RestoreImages::unpack(const ImageBundle& bundle) {
  const auto place = place_for_changes();
  if (!place) return failure(place.error());
  const UniqueFd directory(::open(place->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return system_failure("open", *place);
  for (const auto& [name, bytes] : bundle.included()) {
    const std::string file(name);
    if (Status written = write_image(directory, file, bytes); !written) return written;
    own_.insert(file);
  }
  if (!bundle.is_flat()) return {};
  left_in_checkpoint_.emplace();
  for (const auto& [name, size] : bundle.left_out()) left_in_checkpoint_->emplace(name);
  return {};
}

std::string RestoreImages::path_of(const std::string& name) const {
  return fmt::format("{}/{}", own_.contains(name) ? path_of_descriptor(memory_) : directory_, name);
}

Result<std::string> RestoreImages::place_for_changes() {
  if (!memory_) {
    // The tmpfs grows with its content: the default limit of half of the memory does not apply.
    auto made = detached_mount("tmpfs", {{"mode", "0700"}, {"size", "0"}});
    if (!made) {
      return failure(made.error().errno_value,
                     "make room for changed images: " + made.error().message);
    }
    memory_ = std::move(*made);
  }
  return path_of_descriptor(memory_);
}

Result<std::string> RestoreImages::path_for_change(const std::string& name) {
  auto place = place_for_changes();
  if (!place) return place;
  own_.insert(name);
  return path_of(name);
}

bool RestoreImages::needs_checkpoint() const {
  return !left_in_checkpoint_ ||
         !std::includes(unneeded_.begin(), unneeded_.end(), left_in_checkpoint_->begin(),
                        left_in_checkpoint_->end());
}

Status RestoreImages::publish(const std::string& link) {
  if (!memory_) return {};
  std::string images = path_of_descriptor(memory_);
  if (needs_checkpoint()) {
    auto made = detached_overlay(memory_, directory_, std::filesystem::path(link).parent_path());
    if (!made) return failure(made.error());
    overlay_ = std::move(*made);
    images = path_of_descriptor(overlay_);
  }
  unlink(link.c_str());
  if (symlink(images.c_str(), link.c_str()) != 0) return system_failure("create the link", link);
  return {};
}

void RestoreImages::free_memory() {
  overlay_.reset();
  memory_.reset();
  own_.clear();
}

}  // namespace ppmr
