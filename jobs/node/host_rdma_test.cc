#include "jobs/node/host_rdma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

using testing::HasSubstr;

class HostRdma : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(mkdtemp(home_.data()));
    places_ = {.nodes = path("dev"), .devices = path("class"), .is_shared = path("shared")};
    std::filesystem::create_directories(path("dev"));
    std::filesystem::create_directories(path("class/rxe0/ports/1"));
    write("class/rxe0/ports/1/state", "4: ACTIVE");
    write("shared", "Y");
    std::filesystem::create_symlink("/dev/null", path("dev/uverbs0"));
  }
  void TearDown() override { std::filesystem::remove_all(home_); }

  std::string path(const std::string& name) const { return home_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text << "\n";
  }

  std::string home_ = testing::TempDir() + "/host_rdma_test_XXXXXX";
  RdmaPlaces places_;
};

TEST_F(HostRdma, DeviceThatIsActiveAndSharedCanBeUsed) { EXPECT_EQ(why_no_rdma(places_), ""); }

TEST_F(HostRdma, NumbersOfTheDeviceNodesAreFoundAndOtherFilesAreNot) {
  write("dev/uverbs1", "a file");
  std::filesystem::create_symlink("/dev/zero", path("dev/rdma_cm"));
  const auto found = find_verbs_devices(places_.nodes);
  struct stat null = {};
  ASSERT_EQ(stat("/dev/null", &null), 0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].major, major(null.st_rdev));
  EXPECT_EQ(found[0].minor, minor(null.st_rdev));
}

TEST_F(HostRdma, HostWithoutDeviceIsReported) {
  std::filesystem::remove_all(path("class/rxe0"));
  EXPECT_THAT(why_no_rdma(places_), HasSubstr("no RDMA device"));
}

TEST_F(HostRdma, DeviceWithoutCableIsReported) {
  write("class/rxe0/ports/1/state", "1: DOWN");
  EXPECT_THAT(why_no_rdma(places_), HasSubstr("active"));
}

TEST_F(HostRdma, ErrorAboutMissingDeviceNodesNamesTheModule) {
  std::filesystem::remove(path("dev/uverbs0"));
  EXPECT_THAT(why_no_rdma(places_), HasSubstr("ib_uverbs"));
}

TEST_F(HostRdma, ErrorAboutDevicesOfOneNamespaceNamesTheRemedy) {
  write("shared", "N");
  EXPECT_THAT(why_no_rdma(places_), HasSubstr("rdma system set netns shared"));
}

}  // namespace
}  // namespace ppmr
