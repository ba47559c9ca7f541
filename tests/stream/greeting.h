// Connects to a target and sends hellos, valid or not.
#pragma once

#include <gtest/gtest.h>

#include "rdma_stream/connection/handshake.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {

inline constexpr std::chrono::milliseconds kPatience{5000};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline wire::ControlHello good_hello() {
  wire::ControlHello hello;
  hello.session = random_token();
  hello.slot_count = 4;
  hello.chunk_size_bytes = kChunkSizeMinBytes;
  hello.stream_count = 1;
  hello.source_name = "stranger";
  return hello;
}

struct Greeting : testing::Test {
  std::unique_ptr<Connection> connect() {
    return std::move(rig.connector()->connect(kPatience).value());
  }
  // Returns the target's answer to an invalid hello.
  Error refusal(const wire::ControlHello& hello) {
    auto connection = connect();
    auto welcome = greet_target(*connection, hello, kPatience);
    EXPECT_FALSE(welcome);
    return welcome ? Error{0, ""} : welcome.error();
  }
  ~Greeting() override { EXPECT_EQ(rig.sink().violations(), std::vector<std::string>{}); }

  StreamRig rig;
};

}  // namespace ppmr
