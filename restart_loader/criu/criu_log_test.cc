#include "restart_loader/criu/criu_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

using testing::HasSubstr;

TEST(CriuLine, ParsesErrorsAndWarningsWithAndWithoutTimeAndPid) {
  const CriuLine plain =
      parse_criu_line("Error (criu/cr-restore.c:1237): Can't fork for 12817: File exists");
  EXPECT_EQ(plain.severity, CriuSeverity::kError);
  EXPECT_EQ(plain.text, "Can't fork for 12817: File exists");

  const CriuLine timed = parse_criu_line(
      "(00.012345)   1234: Error (criu/files-reg.c:2143): File tmp/a has bad size 1 (expect 2)\n");
  EXPECT_EQ(timed.severity, CriuSeverity::kError);
  EXPECT_EQ(timed.text, "File tmp/a has bad size 1 (expect 2)");

  EXPECT_EQ(parse_criu_line("  77: Warn  (criu/kerndat.c:1): no").severity, CriuSeverity::kWarning);

  for (const char* from_inside : {"pie: 12: Error (criu/pie/parasite.c:8): can't get /proc fd",
                                  "(00.000228) pie: 12: Error (a.c:8): can't get /proc fd"}) {
    EXPECT_EQ(parse_criu_line(from_inside).severity, CriuSeverity::kError) << from_inside;
    EXPECT_EQ(parse_criu_line(from_inside).text, "can't get /proc fd");
  }
}

TEST(CriuLine, LineThatIsNoErrorOrWarningHasSeverityOther) {
  EXPECT_EQ(parse_criu_line("(00.000228) pie: 12: Restored").severity, CriuSeverity::kOther);
  EXPECT_EQ(parse_criu_line("script said: Error (x:1): not CRIU's").severity, CriuSeverity::kOther);
  EXPECT_EQ(parse_criu_line("Error (criu/cut").severity, CriuSeverity::kOther);
  EXPECT_EQ(parse_criu_line("").severity, CriuSeverity::kOther);
}

TEST(CriuErrors, QuotesTheFirstErrorThatIsNotNoise) {
  CriuErrors errors;
  errors.note(
      "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not "
      "permitted");
  errors.note("Warn  (criu/kerndat.c:1): nothing of importance");
  errors.note(" 9: Error (criu/cr-restore.c:1237): Can't fork for 12817: File exists");
  errors.note("Error (criu/cr-restore.c:2331): Restoring FAILED.");
  EXPECT_THAT(errors.summary(),
              testing::StartsWith("\"Can't fork for 12817: File exists\": pid 12817 is in use"));
}

TEST(CriuErrors, GivesTheRemedyForALaterErrorIfTheFirstIsUnknown) {
  CriuErrors errors;
  errors.note("Error (criu/a.c:1): Something strange");
  errors.note(
      "Error (criu/b.c:1): Can't open file tmp/x/out on restore: No such file or directory");
  EXPECT_THAT(errors.summary(),
              testing::StartsWith("\"Something strange\": /tmp/x/out is missing on this node"));
}

TEST(CriuErrors, QuotesTheFirstLineIfCriuPrintedNoError) {
  CriuErrors errors;
  EXPECT_EQ(errors.summary(), "");
  errors.note("criu: unrecognized option '--nonsense'");
  errors.note("Usage:");
  EXPECT_EQ(errors.summary(), "\"criu: unrecognized option '--nonsense'\"");
}

struct Known {
  const char* error;
  const char* advice;
};

class AdviceFor : public testing::TestWithParam<Known> {};

TEST_P(AdviceFor, NamesTheRemedyForEachKnownCriuError) {
  EXPECT_THAT(advice_for(GetParam().error), HasSubstr(GetParam().advice));
}

INSTANTIATE_TEST_SUITE_P(
    CriuErrors, AdviceFor,
    testing::Values(
        Known{"Pid 40 do not match expected 12", "pid 12 is not available"},
        Known{"File usr/bin/redis-server has bad size 5 (expect 6)",
              "usr/bin/redis-server differs"},
        Known{"Can't open file etc/x on restore: No such file or directory",
              "/etc/x is missing on this node"},
        Known{"tty: Found dangling tty with sid 5 pgid 5 (pts) on peer fd 0.", "--shell-job"},
        Known{"The root process 7 is not a session leader. Consider using --shell-job option",
              "--shell-job"},
        Known{"inet: Connected TCP socket in image", "--tcp-established"},
        Known{"inet: In-flight connection (l) for 65518c", "--skip-in-flight"},
        Known{"unix: Non-empty write queue on an in-flight socket 0x65", "try again"},
        Known{"can't get /proc fd", "a sandbox"},
        Known{"inet: Can't bind inet socket (id 4): Cannot assign requested address",
              "ip address add"},
        Known{"inet: Can't bind inet socket (id 4): Address already in use", "end it first"},
        Known{"unix: External socket found in image. Consider using the --ext-unix-sk option to "
              "allow restoring it.",
              "--ext-unix-sk"},
        Known{"Some file locks are hold by dumping tasks! You can try --file-locks to dump them.",
              "--file-locks"},
        Known{"cg: Cgroup dir memory/a doesn't exist", "--manage-cgroups=ignore"},
        Known{"UFFD is not supported", "--eager"},
        Known{"Can't create memfd in victim: Too many open files", "prlimit --nofile"},
        Known{"Unable to ptrace the child: Operation not permitted", "yama/ptrace_scope"},
        Known{"Can't open /proc/1/map_files: Operation not permitted", "run CRIU as root"},
        Known{"Can't read img: Input/output error", "ppmr status"}));

TEST(Advice, IsEmptyForAnUnknownError) { EXPECT_EQ(advice_for("Restoring FAILED."), ""); }

}  // namespace
}  // namespace ppmr
