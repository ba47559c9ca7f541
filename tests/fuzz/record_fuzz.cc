// Fuzzes records of migrations, which come from a peer or from the state directory.
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_json.h"
#include "migration/records/ownership_record.h"
#include "tests/fuzz/fuzz.h"

namespace {

// Returns whether no component of the path is "..", "." or hidden.
bool is_inside(const std::string& path) {
  return path.size() > 1 && path[0] == '/' && path.find("/.") == std::string::npos;
}

}  // namespace

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  const auto record = parse_record(parse_json(text_of(input)));
  if (!record) return;
  REQUIRE(!record->trees.empty());
  for (const TreeRecord& tree : record->trees) {
    for (const std::string& path : {images_path(*record, tree), memory_path(*record, tree)}) {
      const std::string top = tree.protected_as.empty() ? record->mountpoint : kEpochsDirectory;
      if (!path.empty()) REQUIRE(is_inside(path.substr(top.size())));
    }
  }
  (void)record->owner();
  (void)record->first_error();
  // A record that was read can be written, sent and read again.
  const std::string text = json_text(*record);
  const auto again = parse_record(parse_json(text));
  REQUIRE(again.has_value());
  REQUIRE(json_text(*again) == text);
}
