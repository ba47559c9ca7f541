// The exception guard for C callbacks and for the first function of a thread. An exception that
// left such a function would end the program.
#pragma once

#include <exception>
#include <new>
#include <system_error>
#include <type_traits>

#include "base/result.h"

namespace ppmr {

// Runs `call` and returns its Status or Result. Turns an exception into an error.
template <typename Call>
std::invoke_result_t<Call&> without_exceptions(Call&& call) noexcept {
  try {
    try {
      return call();
    } catch (const std::system_error& exception) {
      return failure(exception.code().value(), exception.what());
    } catch (const std::bad_alloc&) {
      return failure(ENOMEM, "out of memory");
    } catch (const std::exception& exception) {
      return failure(EIO, exception.what());
    }
  } catch (...) {
    return failure(ENOMEM, "out of memory");  // this short string needs no allocation
  }
}

}  // namespace ppmr
