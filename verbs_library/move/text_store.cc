#include "verbs_library/move/text_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "jobs/peer_directory.h"
#include "verbs_library/move/job_store.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/protocol/end_file.h"
#include "verbs_library/shadow/made_once.h"

namespace ppmr::verbs {
namespace {

class Files : public TextStore {
 public:
  int create(const std::string& name, const std::string& text) override {
    const int fd =
        open(path_of(name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? errno : write_and_close(fd, text);
  }

  int write(const std::string& name, const std::string& text) override {
    const std::string path = path_of(name);
    const std::string fresh = path + "." + std::to_string(getpid());
    const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    if (const int error = write_and_close(fd, text); error != 0) return error;
    return rename(fresh.c_str(), path.c_str()) == 0 ? 0 : errno;
  }

  void remove(const std::string& name) override { unlink(path_of(name).c_str()); }

  std::optional<std::string> get(const std::string& name) override {
    const int fd = open(path_of(name).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return std::nullopt;
    struct stat status = {};
    char text[kEndFileBytesMax + 1];
    ssize_t size = -1;
    // Accepts only files of this user or of root: a file of another user could lead the connection
    // to a program of that user.
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        (status.st_uid == geteuid() || status.st_uid == 0))
      size = read(fd, text, sizeof(text));
    close(fd);
    if (size <= 0) return std::nullopt;
    return std::string(text, static_cast<size_t>(size));
  }

 private:
  static std::string path_of(const std::string& name) { return settings().directory + "/" + name; }

  static int write_and_close(int fd, const std::string& text) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    const int error = size < 0 ? errno : size == static_cast<ssize_t>(text.size()) ? 0 : EIO;
    close(fd);
    return error;
  }
};

}  // namespace

TextStore* text_store() {
  static std::atomic<TextStore*> chosen{nullptr};
  const std::string& directory = settings().directory;
  if (directory.empty()) return nullptr;
  return &made_once(chosen, [&directory]() -> TextStore* {
    if (!directory.starts_with(kPeerDirectoryPrefix)) return new Files;
    return make_job_store(directory.substr(std::string_view(kPeerDirectoryPrefix).size()));
  });
}

}  // namespace ppmr::verbs
