#include "jobs/agent/host_contacts.h"

#include <gtest/gtest.h>
#include <netdb.h>

#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const HostContacts::Time kStart{std::chrono::hours(1)};
constexpr milliseconds kQuiet{3000};

struct Contacts : testing::Test {
  std::vector<std::string> due(int after_s, size_t count_max = 10) {
    return contacts.due(hosts, kStart + seconds(after_s), kQuiet, count_max);
  }
  void fail(const std::string& host, int error, int asked_after_s) {
    contacts.note_failure(host, {error, "a reason"}, kStart + seconds(asked_after_s));
  }

  std::set<std::string> hosts = {"a", "b", "c"};
  HostContacts contacts;
};

using Names = std::vector<std::string>;

TEST_F(Contacts, HostsOfANewJobAreAskedWhenTheyHaveBeenQuiet) {
  EXPECT_EQ(due(0), Names{});
  contacts.note_answer("b", kStart + seconds(2));
  EXPECT_EQ(due(3), (Names{"a", "c"}));
  EXPECT_EQ(due(5), (Names{"a", "c", "b"}));
}

TEST_F(Contacts, TheLongestQuietAreAskedFirst) {
  due(0);
  contacts.note_answer("a", kStart + seconds(2));
  contacts.note_answer("b", kStart + seconds(1));
  EXPECT_EQ(due(9, 2), (Names{"c", "b"}));
}

TEST_F(Contacts, HostThatDoesNotAnswerIsSilentUntilItAnswers) {
  due(0);
  fail("a", ETIMEDOUT, 3);
  EXPECT_EQ(contacts.of("a").contact, Contact::kSilent);
  EXPECT_EQ(contacts.of("a").reason, "a reason");
  EXPECT_EQ(contacts.of("b").contact, Contact::kAnswers);
  contacts.note_answer("a", kStart + seconds(4));
  EXPECT_EQ(contacts.of("a").contact, Contact::kAnswers);
  EXPECT_EQ(contacts.of("a").reason, "");
}

TEST_F(Contacts, SilenceBeginsWithTheFirstQuestionThatWasNotAnswered) {
  fail("a", ETIMEDOUT, 3);
  fail("a", ETIMEDOUT, 5);
  EXPECT_EQ(contacts.of("a").since, kStart + seconds(3));
  contacts.note_answer("a", kStart + seconds(6));
  EXPECT_EQ(contacts.of("a").since, kStart + seconds(6));
}

TEST_F(Contacts, HostIsSurelySilentAfterTwoQuestions) {
  fail("a", ETIMEDOUT, 3);
  fail("b", kNoAddress, 3);
  EXPECT_FALSE(is_surely_silent(contacts.of("a"), kStart + seconds(5)));
  EXPECT_TRUE(is_surely_silent(contacts.of("a"), kStart + seconds(7)));
  EXPECT_FALSE(is_surely_silent(contacts.of("b"), kStart + seconds(7)));
  EXPECT_FALSE(is_surely_silent(contacts.of("c"), kStart + seconds(7)));
}

TEST_F(Contacts, SilentHostIsAskedAgain) {
  due(0);
  fail("a", ETIMEDOUT, 3);
  EXPECT_EQ(due(5), (Names{"b", "c"}));
  EXPECT_EQ(due(6).size(), 3u);
}

// If the host was silent before, it may have started again since then.
TEST_F(Contacts, HostWithoutAddressIsNotSilent) {
  fail("a", kNoAddress, 3);
  EXPECT_EQ(contacts.of("a").contact, Contact::kUnknown);
  EXPECT_EQ(contacts.of("a").reason, "a reason");
  fail("b", ETIMEDOUT, 3);
  fail("b", kNoAddress, 4);
  EXPECT_EQ(contacts.of("b").contact, Contact::kUnknown);
  contacts.note_answer("a", kStart + seconds(5));
  EXPECT_EQ(contacts.of("a").contact, Contact::kAnswers);
}

// The host asked this home while the home's own question to it was on its way.
TEST_F(Contacts, FailureThatIsOlderThanAnAnswerDoesNotCount) {
  contacts.note_answer("a", kStart + seconds(5));
  fail("a", ETIMEDOUT, 4);
  EXPECT_EQ(contacts.of("a").contact, Contact::kAnswers);
}

TEST(ContactOf, RefusalIsAnAnswerAlsoIfTheHostHasAskedASilentOne) {
  EXPECT_EQ(contact_of(refusal_of_host({ETIMEDOUT, "no answer from its partner"})),
            Contact::kAnswers);
  EXPECT_EQ(contact_of(refusal_of_host({ECONNREFUSED, "its partner refuses"})), Contact::kAnswers);
  EXPECT_EQ(contact_of(refusal_of_host({kNoAddress, "it does not find its partner"})),
            Contact::kAnswers);
  EXPECT_EQ(contact_of(refusal_of_host({ENODATA, "its partner closed the connection"})),
            Contact::kAnswers);
  EXPECT_EQ(refusal_of_host({ENOENT, "no such epoch"}).errno_value, ENOENT);
}

TEST(Patience, IsShortWithASilentHostOnly) {
  EXPECT_EQ(patience_with(Contact::kAnswers, seconds(30)), seconds(30));
  EXPECT_EQ(patience_with(Contact::kAway, seconds(30)), seconds(30));
  EXPECT_EQ(patience_with(Contact::kSilent, seconds(30)), milliseconds(1500));
  EXPECT_EQ(patience_with(Contact::kSilent, milliseconds(200)), milliseconds(200));
}

TEST_F(Contacts, HostsOfEndedJobsAreForgotten) {
  due(0);
  fail("a", EHOSTUNREACH, 1);
  hosts.erase("a");
  due(2);
  EXPECT_EQ(contacts.of("a").contact, Contact::kAnswers);
}

TEST(ContactOf, RefusedConnectionsShowThatTheHostLives) {
  EXPECT_EQ(contact_of({ECONNREFUSED, ""}), Contact::kAway);
  EXPECT_EQ(contact_of({EHOSTUNREACH, ""}), Contact::kSilent);
  EXPECT_EQ(contact_of({ETIMEDOUT, ""}), Contact::kSilent);
  EXPECT_EQ(contact_of({EINVAL, ""}), Contact::kAnswers);
}

TEST(ContactOf, NameServiceThatFailsShowsNothingAboutTheHost) {
  for (const int code : {EAI_AGAIN, EAI_NONAME, EAI_FAIL}) {
    EXPECT_EQ(contact_of(no_address_error("h2:7441", code)), Contact::kUnknown);
  }
}

TEST(ExplainSilence, NamesWhatTheOperatorCanDo) {
  const auto dead = explain_silence("h2", {ETIMEDOUT, "timed out"}, seconds(300));
  EXPECT_NE(dead.find("300 s after the loss"), std::string::npos) << dead;
  EXPECT_NE(dead.find("timed out"), std::string::npos);
  const auto away = explain_silence("h2", {ECONNREFUSED, "refused"}, seconds(300));
  EXPECT_NE(away.find("start ppmr job agent there"), std::string::npos) << away;
  const auto unknown = explain_silence("h2", {kNoAddress, "no answer of DNS"}, seconds(300));
  EXPECT_NE(unknown.find("when the name has an address"), std::string::npos) << unknown;
}

}  // namespace
}  // namespace ppmr
