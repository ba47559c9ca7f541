// Fuzzes packets on CRIU's RPC socket: requests of a container runtime, notifications and
// responses.
#include "restart_loader/criu/criu_rpc.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  const std::string message = text_of(input);
  if (const auto request = parse_criu_request(message)) {
    const auto changed = parse_criu_request(with_directories(message, 3, 4));
    REQUIRE(changed && changed->type == request->type);
    REQUIRE(changed->images_directory == 3 && changed->work_directory == 4);
    REQUIRE(parse_criu_request(without_freezer(message)).has_value());
    REQUIRE(parse_criu_request(with_lazy_pages(message)).has_value());
  }
  (void)parse_criu_notification(message);
  (void)has_succeeded(message);
}
