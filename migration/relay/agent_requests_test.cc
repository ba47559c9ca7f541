#include "migration/relay/agent_requests.h"

#include <gtest/gtest.h>

#include "base/request_checks.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using namespace agent_request;

OfProtection of_protection() {
  return {.name = "web",
          .tree = {.node_id = "n", .boot_id = "b", .root = 7, .root_start_time = 8, .program = "p"},
          .run = "r",
          .first_partner = "f"};
}

json with_protection(json request) {
  request["name"] = "web";
  request["tree"] = json::parse(
      R"({"node_id": "n", "boot_id": "b", "root": 7, "root_start_time": 8, "program": "p"})");
  request["run"] = "r";
  request["first_partner"] = "f";
  return request;
}

TEST(AgentRequests, EachKindComesBackAndIsChecked) { check_each_kind<Any>(); }

// Version 0.2.0 reads these names and types.
TEST(AgentRequests, FieldsAreThoseOfVersion020) {
  const OfMigration about{"a", "n"};
  EXPECT_EQ(to_request(Clock{}), json::parse(R"({"op": "clock"})"));
  EXPECT_EQ(to_request(PreflightRequest{1, {{"pids", {7}}}}),
            json::parse(R"({"op": "preflight", "version": 1, "questions": {"pids": [7]}})"));
  EXPECT_EQ(to_request(Prepare{{{"id", "a"}}}),
            json::parse(R"({"op": "prepare", "record": {"id": "a"}})"));
  EXPECT_EQ(to_request(Look{about, 3, milliseconds(5), true}),
            json::parse(R"({"op": "look", "id": "a", "node_id": "n", "version": 3,
                            "timeout_ms": 5, "paused": true})"));
  EXPECT_EQ(to_request(Vote{about}), json::parse(R"({"op": "vote", "id": "a", "node_id": "n"})"));
  EXPECT_EQ(to_request(Decide{about, MigrationState::kRunning, ""}),
            json::parse(R"({"op": "decide", "id": "a", "node_id": "n", "state": "running",
                            "error": ""})"));
  EXPECT_EQ(to_request(Decide{about, MigrationState::kAborted, "why"}),
            json::parse(R"({"op": "decide", "id": "a", "node_id": "n", "state": "aborted",
                            "error": "why"})"));
}

TEST(AgentRequests, BytesOfProtectionStay) {
  const json unit = {{"name", "w.service"}, {"journal_sockets", {9}}, {"enabled", true}};
  const TreeManager manager{.unit = {"w.service", {9}, true}};
  EpochOpen open{of_protection(), {"--tcp-close"}, manager};
  open.rolls_back = true;
  EXPECT_EQ(to_request(open), with_protection({{"op", "epoch-open"},
                                               {"rolls_back", true},
                                               {"criu_options", {"--tcp-close"}},
                                               {"manager", {{"unit", unit}}}}));
  EXPECT_EQ(to_request(EpochContact{of_protection()}), with_protection({{"op", "epoch-contact"}}));
  EXPECT_EQ(to_request(EpochClose{of_protection()}), with_protection({{"op", "epoch-close"}}));
  const SealedEpoch epoch{.number = 1,
                          .frozen_ns = 2,
                          .pause_ms = 3,
                          .bytes = 4,
                          .arrived_bytes = 5,
                          .memory_end = 6,
                          .clock_uncertainty_ns = 7};
  json seal = with_protection(json::parse(R"({
      "op": "epoch-seal",
      "epoch": {"number": 1, "frozen_ns": 2, "pause_ms": 3, "bytes": 4, "arrived_bytes": 5,
                "memory_end": 6, "clock_uncertainty_ns": 7},
      "oldest": 8, "checkpoint": "c", "memory": "m", "memory_offset": 9,
      "criu_options": [], "manager": {}})"));
  EXPECT_EQ(to_request(EpochSeal{of_protection(), epoch, 8, "c", "m", 9, {}, {}}), seal);

  seal["manager"] = {{"unit", unit}};
  const auto read = read_one<EpochSeal>(seal);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->tree, of_protection().tree);
  EXPECT_EQ(read->epoch.clock_uncertainty_ns, 7);
  EXPECT_EQ(read->checkpoint + read->memory, "cm");
  EXPECT_EQ(read->manager.unit.name, "w.service");
}

TEST(AgentRequests, WhatMayLackHasItsOldMeaning) {
  const auto look = read_one<Look>({{"id", "a"}});
  ASSERT_TRUE(look) << look.error().message;
  EXPECT_EQ(look->node_id, "");
  EXPECT_EQ(look->version, 0u);
  EXPECT_EQ(look->timeout, milliseconds(0));
  EXPECT_FALSE(look->paused);
  const auto decide = read_one<Decide>({{"id", "a"}, {"state", "aborted"}});
  ASSERT_TRUE(decide) << decide.error().message;
  EXPECT_EQ(decide->error, "");
  json request = with_protection({{"criu_options", json::array()}});
  request.erase("first_partner");
  const auto open = read_one<EpochOpen>(request);
  ASSERT_TRUE(open) << open.error().message;
  EXPECT_EQ(open->first_partner, "");
  EXPECT_FALSE(open->rolls_back) << "the agent takes what it knows";
  EXPECT_EQ(to_json(open->manager), json::object());
}

TEST(AgentRequests, WhatIsInvalidIsRefusedByName) {
  const auto why = [](const json& request) {
    const auto read = read_request<Any>(request);
    return read ? "" : read.error().message;
  };
  EXPECT_EQ(why({{"op", "decide"}, {"id", "a"}, {"state", "gone"}}),
            "malformed request 'decide': state: it is not a state of a migration");
  json open = with_protection({{"op", "epoch-open"}, {"criu_options", json::array()}});
  open["manager"] = {
      {"unit", {{"name", "/"}, {"journal_sockets", json::array()}, {"enabled", true}}}};
  EXPECT_EQ(why(open), "malformed request 'epoch-open': manager: '/' is not the name of a unit");
  json contact = with_protection({{"op", "epoch-contact"}});
  contact["tree"].erase("boot_id");
  EXPECT_TRUE(why(contact).starts_with("malformed request 'epoch-contact': tree: "));
  EXPECT_NE(why(contact).find("boot_id"), std::string::npos) << why(contact);
  EXPECT_EQ(read_request<Any>({{"op", "dance"}}).error().errno_value, EOPNOTSUPP);
}

}  // namespace
}  // namespace ppmr
