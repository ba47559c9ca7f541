// The fixture of all cases. Each case gets a fresh top-level directory (a checkpoint, on ppmr's
// mounts), writes below the write side and looks at the read side; the two are the same directory
// on tmpfs and for reading back at the source.
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
  std::string ppmr;  // binary for cases that seal; empty: those cases are skipped
};

// Reads --write-dir, --read-dir, --expect and --ppmr (or MOUNT_CASES_WRITE_DIR, _READ_DIR, _EXPECT
// and PPMR), once, before the first case. Returns a message if they make no sense.
std::string read_settings(int argc, char** argv);
const Settings& settings();

// Each case that runs longer ends the whole binary with this code: a hung mount must not hang its
// test.
inline constexpr int kExitCaseTookTooLong = 124;
void allow_seconds(unsigned seconds);

class MountCase : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Path of `name` in the directory of this case, at the one side or the other.
  std::string at_writer(const std::string& name = "") const {
    return below(settings().write_dir, name);
  }
  std::string at_reader(const std::string& name = "") const {
    return below(settings().read_dir, name);
  }
  // Name of this case's directory; also the start of every other top-level name a case makes.
  const std::string& top() const { return top_; }
  const Expectations& expects() const { return expects_; }

  // A check of names or attributes at the read side. Across, it is asked again for a few seconds,
  // for a change of names is on its way while the call at the source has answered already. On one
  // and the same mount it must hold at once.
  testing::AssertionResult soon(const std::function<testing::AssertionResult()>& check) const;
  testing::AssertionResult soon_absent(const std::string& name) const;
  testing::AssertionResult soon_present(const std::string& name) const;
  testing::AssertionResult soon_reads_as(const std::string& name, std::string_view bytes) const;
  // The read side's names equal `names` (in any order), each listed once.
  testing::AssertionResult soon_lists(const std::string& directory,
                                      std::vector<std::string> names) const;

  // The call was refused with one of the errnos of the table.
  testing::AssertionResult is_refusal(int error) const;

 private:
  std::string below(const std::string& mount, const std::string& name) const {
    return name.empty() ? mount + "/" + top_ : mount + "/" + top_ + "/" + name;
  }

  std::string top_;
  Expectations expects_ = expectations_of(settings().side);
};

}  // namespace ppmr::mount_cases
