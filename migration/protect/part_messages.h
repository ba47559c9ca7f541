// The messages between `ppmr part-epochs` and its leader: lines of JSON over a Unix stream socket.
//
//   leader                     ppmr part-epochs, of one container
//   epoch   --------------->   copies its memory in rounds
//           <------- ready     when little is left
//   freeze  --------------->   it stands still, cut off from its network
//           <---- captured
//   go      --------------->   it runs on; the epoch is kept here, then at the partner
//           <-------- kept
//
// With `hold` the container does not run on after `go`:
//
//   go      --------------->   the epoch is kept here
//           <-------- kept
//   hold    --------------->   it stands still, for a limited time: the leader repeats this
//   hold, off  ------------>   it runs on
//           <---- released
//
// If a step fails, `ppmr part-epochs` reports `failed`, and the container runs on. The next message
// of the leader is then `epoch`.
#pragma once

#include <cstdint>
#include <string>

namespace ppmr::part_message {

struct Epoch {
  static constexpr const char* kName = "epoch";
  uint64_t number = 0;
  uint64_t oldest = 0;  // epochs before it are not kept any longer
  bool hold = false;    // the container stands still after the epoch is kept
  template <typename F>
  void fields(F&& field) {
    field("number", number), field("oldest", oldest), field.may_lack("hold", hold);
  }
};

struct Freeze {
  static constexpr const char* kName = "freeze";
  uint64_t number = 0;
  template <typename F>
  void fields(F&& field) {
    field("number", number);
  }
};

struct Go {
  static constexpr const char* kName = "go";
  uint64_t number = 0;
  bool keep = false;  // whether all parts of the whole were captured
  template <typename F>
  void fields(F&& field) {
    field("number", number), field("keep", keep);
  }
};

struct Hold {
  static constexpr const char* kName = "hold";
  uint64_t number = 0;
  bool on = false;
  template <typename F>
  void fields(F&& field) {
    field("number", number), field("on", on);
  }
};

inline constexpr const char* kReady = "ready";
inline constexpr const char* kCaptured = "captured";
inline constexpr const char* kKept = "kept";
inline constexpr const char* kReleased = "released";
inline constexpr const char* kFailed = "failed";

struct Report {
  uint64_t number = 0;
  std::string step;         // one of those above
  std::string error;        // why it has failed
  uint64_t bytes = 0;       // kept: memory of the container
  uint64_t sent_bytes = 0;  // kept: memory that this epoch has sent
  int64_t pause_ms = 0;     // kept: how long the container stood still
  template <typename F>
  void fields(F&& field) {
    field("number", number), field("step", step);
    field.may_lack("error", error), field.may_lack("bytes", bytes);
    field.may_lack("sent_bytes", sent_bytes), field.may_lack("pause_ms", pause_ms);
  }
};

inline constexpr size_t kLineMaxBytes = 64 << 10;

}  // namespace ppmr::part_message
