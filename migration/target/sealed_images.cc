#include "migration/target/sealed_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "mount/detached_mount.h"
#include "preflight/policy/checkpoint_links.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kPatience{30};

tl::unexpected<Error> replaced(const std::string& path) {
  return failure(ESTALE, "checkpoint " + path + " was replaced after it had been sealed");
}

}  // namespace

Result<SealedImages> SealedImages::open(Place place) {
  SealedImages images(std::move(place));
  const std::string path = images.place_.mountpoint + "/" + images.place_.checkpoint;
  images.checkpoint_ =
      UniqueFd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!images.checkpoint_ || fstat(images.checkpoint_.get(), &found) != 0) {
    return system_failure("open checkpoint", path);
  }
  if (found.st_ino != images.place_.inode) return replaced(path);
  if (Status given = images.request_bundle(); !given) return failure(given.error());
  if (images.bundle_ && images.bundle_->is_flat()) return images;
  if (Status safe = refuse_links(images.top()); !safe) {
    return failure(images.with_names(safe.error()));
  }
  return images;
}

Result<SealedImages> SealedImages::open_epoch(const std::string& directory) {
  const std::filesystem::path path(directory);
  SealedImages images({"", path.parent_path(), path.filename(), 0});
  images.checkpoint_ =
      UniqueFd(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!images.checkpoint_) return system_failure("open the images of the epoch", directory);
  if (Status safe = refuse_links(images.top()); !safe) {
    return failure(images.with_names(safe.error()));
  }
  return images;
}

Status SealedImages::request_bundle() {
  ControlCall call;
  const nlohmann::json request = to_request(request::Bundle{place_.checkpoint});
  if (Status sent = call.send(place_.control_socket, request, kPatience); !sent) return sent;
  auto answer = call.answer(kPatience);
  if (!answer) return failure(answer.error());
  const Status given = accepted(*answer);
  if (!given && given.error().errno_value == EOPNOTSUPP) return {};
  if (!given) return given;
  if (answer->value("inode", uint64_t{0}) != place_.inode) {
    return replaced(place_.mountpoint + "/" + place_.checkpoint);
  }
  bundle_file_ = call.descriptor();
  if (!bundle_file_) {
    return failure(EPROTO, "get the images of checkpoint " + place_.checkpoint +
                               " from the daemon: its answer has no descriptor");
  }
  auto opened = ImageBundle::open(bundle_file_);
  if (!opened) return failure(opened.error());
  bundle_ = std::move(*opened);
  return {};
}

std::string SealedImages::top() const { return path_of_descriptor(checkpoint_); }

std::string SealedImages::path() const { return top(); }

std::string SealedImages::bundle_path() const {
  return bundle_ ? path_of_descriptor(bundle_file_) : "";
}

Error SealedImages::with_names(Error error) const {
  if (const size_t at = error.message.find(top()); at != std::string::npos) {
    error.message.replace(at, top().size(), place_.mountpoint + "/" + place_.checkpoint);
  }
  return error;
}

}  // namespace ppmr
