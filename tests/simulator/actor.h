// Coroutines for the simulator: an actor is a program of a node that can be killed between any two
// of its steps. Work<T> is what an actor awaits. An actor that pauses returns to the scheduler,
// which picks the next one.
//
// Threads: one.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace ppmr::simulator {

template <typename T>
class [[nodiscard]] Work {
 public:
  struct promise_type {
    std::optional<T> value;
    std::coroutine_handle<> awaiting;
    Work get_return_object() {
      return Work(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> done) noexcept {
        const auto awaiting = done.promise().awaiting;
        return awaiting ? awaiting : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_value(T result) { value = std::move(result); }
    void unhandled_exception() { std::terminate(); }
  };

  explicit Work(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Work(Work&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Work(const Work&) = delete;
  ~Work() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) {
    handle_.promise().awaiting = awaiting;
    return handle_;
  }
  T await_resume() { return std::move(*handle_.promise().value); }

  std::coroutine_handle<> handle() const { return handle_; }
  bool is_done() const { return handle_.done(); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

struct Nothing {};

// A program. Destroying it is a SIGKILL: none of its code runs any more.
struct Actor {
  std::string name;
  bool at_source = false;
  bool is_daemon = false;      // a daemon, or a child that ends with its daemon
  int tree = -1;               // the tree that it works for; -1: all trees
  uint64_t stopped_until = 0;  // after SIGSTOP: the time at which it continues
  Work<Nothing> work;
  std::coroutine_handle<> next;  // where its next step begins
};

}  // namespace ppmr::simulator
