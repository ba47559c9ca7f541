#include "tests/mount_cases/mount_case.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace ppmr::mount_cases {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

namespace {

constexpr unsigned kCaseSeconds = 60;
constexpr std::chrono::seconds kPatience{10};

Settings& mutable_settings() {
  static Settings settings;
  return settings;
}

// The text that the handler of SIGALRM prints; changed only while the alarm is off.
std::array<char, 512>& running_case() {
  static std::array<char, 512> text{};
  return text;
}

void give_up(int) {
  const std::array<char, 512>& text = running_case();
  (void)!::write(STDOUT_FILENO, text.data(), ::strnlen(text.data(), text.size()));
  ::_exit(kExitCaseTookTooLong);
}

std::string option(int argc, char** argv, const std::string& flag, const char* variable) {
  std::string value = std::getenv(variable) == nullptr ? "" : std::getenv(variable);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind(flag + "=", 0) == 0) value = word.substr(flag.size() + 1);
    if (word == flag && i + 1 < argc) value = argv[i + 1];
  }
  return value;
}

}  // namespace

std::string read_settings(int argc, char** argv) {
  Settings& into = mutable_settings();
  into.write_dir = option(argc, argv, "--write-dir", "MOUNT_CASES_WRITE_DIR");
  into.read_dir = option(argc, argv, "--read-dir", "MOUNT_CASES_READ_DIR");
  into.ppmr = option(argc, argv, "--ppmr", "PPMR");
  if (into.read_dir.empty()) into.read_dir = into.write_dir;
  const std::string side = option(argc, argv, "--expect", "MOUNT_CASES_EXPECT");
  if (into.write_dir.empty())
    return "--write-dir is missing: a directory on the file system under test";
  if (side == "tmpfs" || side.empty()) {
    into.side = Side::kTmpfs;
  } else if (side == "source") {
    into.side = Side::kSource;
  } else if (side == "target") {
    into.side = Side::kTarget;
  } else {
    return "--expect=" + side + ": must be tmpfs, source or target";
  }
  if (into.side == Side::kTarget && into.read_dir == into.write_dir)
    return "--expect=target requires a --read-dir other than --write-dir";
  return "";
}

const Settings& settings() { return mutable_settings(); }

void allow_seconds(unsigned seconds) {
  ::alarm(0);
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string text = std::string("\n[ TOO LONG ] ") + info->test_suite_name() + "." +
                           info->name() + " took more than " + std::to_string(seconds) + " s\n";
  std::array<char, 512>& into = running_case();
  into.fill('\0');
  text.copy(into.data(), into.size() - 1);
  struct sigaction action {};
  action.sa_handler = &give_up;
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(seconds);
}

void MountCase::SetUp() {
  allow_seconds(kCaseSeconds);
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  top_ = std::string(info->test_suite_name()) + "." + info->name();
  std::replace(top_.begin(), top_.end(), '/', '-');
  top_.resize(std::min<size_t>(top_.size(), 120));
  top_ += "-" + std::to_string(::getpid());
  ASSERT_EQ(errno_of(::mkdir(at_writer().c_str(), 0755)), 0) << at_writer();
}

void MountCase::TearDown() {
  std::error_code error;
  std::filesystem::remove_all(at_writer(), error);
  // The source refuses to change a sealed checkpoint. `rm -r` at the target frees it.
  const bool left_at_writer = error.operator bool();
  if (expects_.reader_is_elsewhere && !soon([&] { return is_absent(at_reader()); })) {
    std::error_code at_read_side;
    std::filesystem::remove_all(at_reader(), at_read_side);
    EXPECT_FALSE(at_read_side) << "rm -r " << at_reader() << ": " << at_read_side.message();
  } else {
    EXPECT_FALSE(left_at_writer) << "rm -r " << at_writer() << ": " << error.message();
  }
  EXPECT_TRUE(soon([&] { return is_absent(at_reader()); }));
  ::alarm(0);
}

AssertionResult MountCase::soon(const std::function<AssertionResult()>& check) const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    AssertionResult result = check();
    if (result || !expects_.reader_is_elsewhere || std::chrono::steady_clock::now() >= deadline)
      return result;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

AssertionResult MountCase::soon_absent(const std::string& name) const {
  return soon([&] { return is_absent(at_reader(name)); });
}

AssertionResult MountCase::soon_present(const std::string& name) const {
  return soon([&] { return is_present(at_reader(name)); });
}

AssertionResult MountCase::soon_reads_as(const std::string& name, std::string_view bytes) const {
  return soon([&] { return reads_as(at_reader(name), bytes); });
}

AssertionResult MountCase::soon_lists(const std::string& directory,
                                      std::vector<std::string> names) const {
  std::sort(names.begin(), names.end());
  if (AssertionResult there = soon_present(directory); !there) return there;
  return soon([&] {
    std::vector<std::string> listed = list_directory(at_reader(directory));
    std::sort(listed.begin(), listed.end());
    if (listed == names) return AssertionSuccess();
    AssertionResult failure = AssertionFailure()
                              << listed.size() << " names listed, expected " << names.size() << ":";
    for (size_t i = 0; i < std::min<size_t>(listed.size(), 20); ++i) failure << " " << listed[i];
    return failure;
  });
}

AssertionResult MountCase::is_refusal(int error) const {
  if (expects_.refusals.contains(error)) return AssertionSuccess();
  AssertionResult failure = AssertionFailure() << (error == 0 ? "succeeded" : errno_name(error))
                                               << ", expected one of";
  for (const int allowed : expects_.refusals) failure << " " << errno_name(allowed);
  return failure;
}

}  // namespace ppmr::mount_cases
