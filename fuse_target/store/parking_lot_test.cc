#include "fuse_target/store/parking_lot.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <stdexcept>

namespace ppmr {
namespace {

constexpr pid_t kLiving = 1;
constexpr pid_t kDying = 2;

// A request that can be answered when `can_answer` is true.
struct FakeRequest {
  std::atomic<bool> can_answer = false;
  std::atomic<int> answers = 0;
  std::atomic<int> refused_with = 0;
  std::atomic<int> tries = 0;

  ParkedRequest parked(const void* subject, const void* checkpoint, pid_t caller = kLiving) {
    ParkedRequest request;
    request.id = this;
    request.caller = caller;
    request.subject = subject;
    request.checkpoint = checkpoint;
    request.retry = [this] {
      ++tries;
      if (!can_answer) return false;
      ++answers;
      return true;
    };
    request.refuse = [this](int errno_value) { refused_with = errno_value; };
    return request;
  }
};

class ParkingLotTest : public ::testing::Test {
 protected:
  ~ParkingLotTest() override { lot_.close(); }
  template <typename Condition>
  bool becomes_true(Condition condition) {
    for (int i = 0; i < 500 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }

  const int file_ = 0;
  const int other_file_ = 0;
  const int checkpoint_ = 0;
  FakeRequest request_;
  ParkingLot lot_{[](pid_t caller) { return caller == kDying; }};
};

TEST_F(ParkingLotTest, AnswersARequestWhenItsFileChanges) {
  lot_.park(request_.parked(&file_, &checkpoint_));
  EXPECT_EQ(lot_.parked(), 1u);
  lot_.changed(&file_);
  EXPECT_EQ(request_.answers, 0) << "not yet";
  request_.can_answer = true;
  lot_.changed(&other_file_);
  EXPECT_EQ(request_.answers, 0);
  lot_.changed(&file_);
  EXPECT_EQ(request_.answers, 1);
  EXPECT_EQ(lot_.parked(), 0u);
  lot_.changed(&file_);
  EXPECT_EQ(request_.answers, 1);
}

TEST_F(ParkingLotTest, AnswersARequestWhenItsCheckpointChanges) {
  lot_.park(request_.parked(&file_, &checkpoint_));
  request_.can_answer = true;
  lot_.changed(&checkpoint_);
  EXPECT_EQ(request_.answers, 1);
}

TEST_F(ParkingLotTest, RetriesARequestOnceAtTheMomentOfParking) {
  request_.can_answer = true;  // the caller's own attempt has failed before
  lot_.park(request_.parked(&file_, &checkpoint_));
  EXPECT_EQ(request_.answers, 1);
  EXPECT_EQ(lot_.parked(), 0u);
}

TEST_F(ParkingLotTest, RefusesAnInterruptedRequestOnlyIfItsCallerIsDying) {
  FakeRequest dying;
  lot_.park(request_.parked(&file_, &checkpoint_, kLiving));
  lot_.park(dying.parked(&file_, &checkpoint_, kDying));
  lot_.interrupted(&request_);
  lot_.interrupted(&dying);
  EXPECT_TRUE(becomes_true([&] { return dying.refused_with == EINTR; }));
  EXPECT_EQ(request_.refused_with, 0);
  EXPECT_EQ(lot_.parked(), 1u);
  request_.can_answer = true;
  lot_.changed(&file_);
  EXPECT_EQ(request_.answers, 1);
}

TEST_F(ParkingLotTest, RefusesARequestThatIsInterruptedDuringTheCallThatParksIt) {
  ParkedRequest parked = request_.parked(&file_, &checkpoint_, kDying);
  parked.on_parked = [this] { lot_.interrupted(&request_); };
  lot_.park(std::move(parked));
  EXPECT_TRUE(becomes_true([&] { return request_.refused_with == EINTR; }));
}

TEST_F(ParkingLotTest, IgnoresAnInterruptOfARequestThatIsNotParked) {
  lot_.interrupted(&request_);
  lot_.park(request_.parked(&file_, &checkpoint_));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(request_.refused_with, 0);
}

TEST_F(ParkingLotTest, CloseRefusesPresentAndLaterRequests) {
  lot_.park(request_.parked(&file_, &checkpoint_));
  lot_.close();
  EXPECT_EQ(request_.refused_with, ENOTCONN);
  FakeRequest late;
  lot_.park(late.parked(&file_, &checkpoint_));
  EXPECT_EQ(late.refused_with, ENOTCONN);
  EXPECT_EQ(lot_.parked(), 0u);
}

TEST_F(ParkingLotTest, AnswersEachOfManyRequestsOnceUnderConcurrentChanges) {
  constexpr int kRequests = 200;
  std::vector<FakeRequest> requests(kRequests);
  std::atomic<bool> done = false;
  std::thread changer([&] {
    while (!done) lot_.changed(&file_), lot_.changed(&checkpoint_);
  });
  std::thread parker([&] {
    for (auto& request : requests) lot_.park(request.parked(&file_, &checkpoint_));
  });
  for (auto& request : requests) request.can_answer = true;
  parker.join();
  EXPECT_TRUE(becomes_true([&] { return lot_.parked() == 0; }));
  done = true;
  changer.join();
  for (auto& request : requests) EXPECT_EQ(request.answers, 1);
}

TEST_F(ParkingLotTest, RefusesARequestWhoseRetryThrows) {
  std::optional<std::function<void()>> failing;
  const auto parked = [&](FakeRequest& request) {
    ParkedRequest parked = request.parked(&file_, &checkpoint_);
    parked.retry = [&] {
      if (failing) (*failing)();
      return false;
    };
    return parked;
  };
  FakeRequest second;
  lot_.park(parked(request_));
  lot_.park(parked(second));
  failing = [] { throw std::bad_alloc(); };
  lot_.changed(&file_);
  EXPECT_EQ(request_.refused_with, ENOMEM);
  EXPECT_EQ(second.refused_with, ENOMEM);
  failing = [] { throw std::runtime_error("out of luck"); };
  FakeRequest third;
  lot_.park(parked(third));
  EXPECT_EQ(third.refused_with, EIO);
  EXPECT_EQ(lot_.parked(), 0u);
}

}  // namespace
}  // namespace ppmr
