#include "verbs_library/protocol/destination.h"

namespace ppmr::verbs {
namespace {

constexpr int kRefusalsMax = 50;  // after so many, the end's process counts as ended

}  // namespace

bool Destination::look(Listing listing) {
  if (phase_ != Phase::kAsking) return false;
  switch (listing) {
    case Listing::kNone:
      phase_ = was_listed_ ? Phase::kLost : Phase::kForeign;
      return false;
    case Listing::kMoves:
      was_listed_ = true;
      refusals_ = 0;
      return false;
    case Listing::kHere:
      was_listed_ = true;
      return true;
  }
  return false;
}

void Destination::answered(uint64_t round, ReplyKind kind) {
  // A HOLD that arrived after the question has begun a new round, so this answer is out of date.
  if (phase_ != Phase::kAsking || round != round_) return;
  refusals_ = 0;
  if (kind == ReplyKind::kKeys) phase_ = Phase::kKnown;
  if (kind == ReplyKind::kGone) phase_ = Phase::kLost;
}

void Destination::refused() {
  if (phase_ == Phase::kAsking && ++refusals_ >= kRefusalsMax) phase_ = Phase::kLost;
}

ReplyKind Destination::hold(bool sends_done) {
  ask_again();
  return sends_done ? ReplyKind::kOk : ReplyKind::kDraining;
}

void Destination::ask_again() {
  phase_ = Phase::kAsking;
  refusals_ = 0;
  ++round_;
}

}  // namespace ppmr::verbs
