#include "restart_loader/criu/cpu_check.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include "base/whole_file.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/work_directory.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kPatience{15};
constexpr size_t kImageMaxBytes = 64 << 10;
constexpr const char* kImage = "/cpuinfo.img";
constexpr std::string_view kDigits = "0123456789abcdef";
// The first 8 bytes of a cpuinfo image in hexadecimal (magic.h of CRIU's sources): the magic number
// of all images, then the magic number of cpuinfo.
constexpr std::string_view kMagic = "1943565413404061";

Result<std::unique_ptr<CriuProcess>> run(const std::string& criu, const std::string& what,
                                         const std::string& directory) {
  auto process = CriuProcess::start(
      {.argv = {criu, "cpuinfo", what, "-D", directory, "-W", directory}, .background = true});
  if (!process) return process;
  if (!(*process)->await_end(kPatience)) {
    return failure(ETIMEDOUT, "criu cpuinfo " + what + " did not end within 15 s");
  }
  return process;
}

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<std::string> bytes_of(const std::string& text) {
  if (text.size() % 2 != 0 || text.size() / 2 > kImageMaxBytes || !text.starts_with(kMagic) ||
      text.find_first_not_of(kDigits) != std::string::npos) {
    return failure(EPROTO,
                   "cannot parse the description of the source's processor (install the same ppmr "
                   "on both nodes)");
  }
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes += static_cast<char>(kDigits.find(text[i]) << 4 | kDigits.find(text[i + 1]));
  }
  return bytes;
}

}  // namespace

Result<std::string> describe_processor(const std::string& criu) {
  auto directory = WorkDirectory::create("");
  if (!directory) return failure(directory.error());
  auto process = run(criu, "dump", directory->path());
  if (!process) return failure(process.error());
  if (!(*process)->succeeded()) {
    return failure(ECHILD, "criu cpuinfo dump: " + (*process)->errors().summary());
  }
  const std::string path = directory->path() + kImage;
  const auto image = read_whole_file(path);
  if (!image) {
    return failure(image.error().errno_value, "criu cpuinfo dump: " + image.error().message);
  }
  std::string text = hexadecimal(*image);
  if (!text.starts_with(kMagic)) {
    return failure(EPROTO, "criu cpuinfo dump: " + path + " is not an image of CRIU");
  }
  return text;
}

Status check_processor(const std::string& criu, const std::string& description) {
  const auto image = bytes_of(description);
  if (!image) return failure(image.error());
  auto directory = WorkDirectory::create("");
  if (!directory) return failure(directory.error());
  const std::string path = directory->path() + kImage;
  std::ofstream file(path);
  file << *image;
  file.close();
  if (!file) return system_failure("write", path);
  auto process = run(criu, "check", directory->path());
  if (!process) return failure(process.error());
  if ((*process)->succeeded()) return {};
  if ((*process)->was_killed()) return failure(ECHILD, "criu cpuinfo check was killed");
  return failure(ENOTSUP, (*process)->errors().summary());
}

}  // namespace ppmr
