#include "jobs/node/control_group.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(StepGroup, IsTheDeepestGroupInAnyHierarchy) {
  EXPECT_EQ(step_group("9:name=systemd:/\n"
                       "6:freezer:/slurm/uid_0/job_42/step_0\n"
                       "4:memory:/slurm/uid_0/job_42/step_0/task_3\n"
                       "0::/\n",
                       "42"),
            "/slurm/uid_0/job_42/step_0/task_3");
}

TEST(StepGroup, IsFoundWithVersion2AndWithSeveralDaemonsOnAMachine) {
  EXPECT_EQ(step_group("0::/system.slice/slurmstepd.scope/job_7/step_1/user/task_0\n", "7"),
            "/system.slice/slurmstepd.scope/job_7/step_1/user/task_0");
  EXPECT_EQ(step_group("6:freezer:/slurm_n3/uid_0/job_7/step_0\n", "7"),
            "/slurm_n3/uid_0/job_7/step_0");
  EXPECT_EQ(step_group("0::/system.slice/n3_slurmstepd.scope/job_7/step_1/user/task_0\n", "7"),
            "/system.slice/n3_slurmstepd.scope/job_7/step_1/user/task_0");
}

TEST(StepGroup, IsNeverAGroupThatAUserCanMake) {
  const std::string delegated = "/user.slice/user-1000.slice/user@1000.service";
  for (const char* name : {"/slurmstepd.scope/job_7/x", "/slurm/job_7/x", "/slurm_n3/job_7/x",
                           "/system.slice/slurmstepd.scope/job_7/x"}) {
    EXPECT_EQ(step_group("0::" + delegated + name + "\n", "7"), "") << name;
  }
}

TEST(StepGroup, IsEmptyForAnotherAllocationOrWithoutAScheduler) {
  EXPECT_EQ(step_group("6:freezer:/slurm/uid_0/job_421/step_0\n", "42"), "");
  EXPECT_EQ(step_group("6:freezer:/user.slice/job_42/step_0\n", "42"), "");
  EXPECT_EQ(step_group("0::/user.slice/session-1.scope\n", "42"), "");
  EXPECT_EQ(step_group("0::/../slurm/../slurm_x/job_42/step_0\n", "42"), "");
  EXPECT_EQ(step_group("malformed\n\n:\n", "42"), "");
}

}  // namespace
}  // namespace ppmr
