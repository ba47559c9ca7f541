// The fixture of all cases. Each case gets a new top-level directory (on ppmr's mounts, a
// checkpoint), writes at the write side and reads at the read side. On tmpfs, and when the source
// reads back, both sides are one directory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "tests/mount_cases/expectations.h"
#include "tests/mount_cases/files.h"

namespace ppmr::mount_cases {

struct Settings {
  std::string write_dir;
  std::string read_dir;
  Side side = Side::kTmpfs;
  std::string ppmr;  // binary; empty: cases that seal are skipped
};

// Reads --write-dir, --read-dir, --expect and --ppmr (or MOUNT_CASES_WRITE_DIR, _READ_DIR, _EXPECT
// and PPMR), once, before the first case. Returns an error message, empty on success.
std::string read_settings(int argc, char** argv);
const Settings& settings();

// Ends the binary with kExitCaseTookTooLong if the case runs longer: a mount that hangs must not
// make its test hang. A further call extends the limit.
inline constexpr int kExitCaseTookTooLong = 124;
void allow_seconds(unsigned seconds);

class MountCase : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Returns the path of `name` in the directory of this case.
  std::string at_writer(const std::string& name = "") const {
    return below(settings().write_dir, name);
  }
  std::string at_reader(const std::string& name = "") const {
    return below(settings().read_dir, name);
  }
  // Returns the name of this case's directory. Every other top-level name of the case begins with
  // this name.
  const std::string& top() const { return top_; }
  const Expectations& expects() const { return expects_; }

  // Checks names or attributes at the read side. Across two mounts, repeats the check for a few
  // seconds: a call that changes names returns at the source before the change reaches the target.
  // On one mount the check must succeed at once.
  testing::AssertionResult soon(const std::function<testing::AssertionResult()>& check) const;
  testing::AssertionResult soon_absent(const std::string& name) const;
  testing::AssertionResult soon_present(const std::string& name) const;
  testing::AssertionResult soon_reads_as(const std::string& name, std::string_view bytes) const;
  // Checks that the directory lists exactly `names`, once each, in any order.
  testing::AssertionResult soon_lists(const std::string& directory,
                                      std::vector<std::string> names) const;

  // Checks that `error` is one of the table's refusals.
  testing::AssertionResult is_refusal(int error) const;

 private:
  std::string below(const std::string& mount, const std::string& name) const {
    return name.empty() ? mount + "/" + top_ : mount + "/" + top_ + "/" + name;
  }

  std::string top_;
  Expectations expects_ = expectations_of(settings().side);
};

}  // namespace ppmr::mount_cases
