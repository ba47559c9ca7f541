#include "jobs/cli/mpi_environment.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ppmr {
namespace {

// Returns the values of the variable in the environment of a job that starts in `environment`.
std::vector<std::string> values_of(const std::string& name, std::vector<std::string> environment,
                                   Transport transport = Transport::kTcp) {
  std::vector<char*> pointers;
  for (std::string& variable : environment) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  std::vector<std::string> values;
  for (const std::string& variable : job_environment("0123abcd", pointers.data(), transport)) {
    if (variable.starts_with(name + "=")) values.push_back(variable.substr(name.size() + 1));
  }
  return values;
}

using Values = std::vector<std::string>;

TEST(JobEnvironment, LeavesOutTheOneSidedComponentThatNeedsRdma) {
  EXPECT_EQ(values_of("OMPI_MCA_osc", {}), Values{"^rdma,ucx"});
}

TEST(JobEnvironment, TuningOfTheCallerHasPrecedence) {
  EXPECT_EQ(values_of("OMPI_MCA_osc", {"OMPI_MCA_osc=sm,pt2pt"}), Values{"sm,pt2pt"});
  EXPECT_EQ(values_of("UCX_TLS", {"UCX_TLS=tcp,self"}), Values{"tcp,self"});
}

TEST(JobEnvironment, WhatTheLauncherNeedsReplacesTheCallersSetting) {
  EXPECT_EQ(values_of("HYDRA_LAUNCHER", {"HYDRA_LAUNCHER=slurm"}), Values{"ssh"});
}

TEST(JobEnvironment, EachTransportHasItsOwnSettings) {
  EXPECT_EQ(values_of("OMPI_MCA_pml", {}), Values{"ob1"});
  EXPECT_EQ(values_of("UCX_NET_DEVICES", {}), Values{"eth0"});
  EXPECT_EQ(values_of("OMPI_MCA_pml", {}, Transport::kRdma), Values{"ucx"});
  EXPECT_EQ(values_of("UCX_TLS", {}, Transport::kRdma), Values{"rc_v,ud_v,posix,cma,self"});
  EXPECT_EQ(values_of("UCX_NET_DEVICES", {}, Transport::kRdma), Values{});
}

TEST(JobEnvironment, LaunchersUseTheTcpNetworkEvenWithRdma) {
  EXPECT_EQ(values_of("HYDRA_IFACE", {}, Transport::kRdma), Values{"eth0"});
  EXPECT_EQ(values_of("OMPI_MCA_oob_tcp_if_include", {}, Transport::kRdma), Values{"eth0"});
}

TEST(EnvironmentForDaemons, HasTheSettingsOfUcxAndLittleElse) {
  std::vector<std::string> all = {"PATH=/usr/bin", "UCX_TLS=rc_v", "PATHOLOGY=1", "OMPI_X=1"};
  std::vector<char*> pointers;
  for (std::string& variable : all) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  EXPECT_EQ(environment_for_daemons(pointers.data()), (Values{"PATH=/usr/bin", "UCX_TLS=rc_v"}));
}

TEST(JobEnvironment, VariablesOfTheHostAreLeftOut) {
  EXPECT_EQ(values_of("TMPDIR", {"TMPDIR=/scratch"}), Values{});
  EXPECT_EQ(values_of("HOSTNAME", {"HOSTNAME=n1"}), Values{});
  EXPECT_EQ(values_of("PATH", {"PATH=/usr/bin"}), Values{"/usr/bin"});
}

}  // namespace
}  // namespace ppmr
