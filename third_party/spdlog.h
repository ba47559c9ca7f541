// Includes spdlog. Its `extern template` keeps the compiler from generating fmt's formatting engine
// in every file that logs: the fmt library contains the engine, but the headers of fmt 9 lack this
// declaration. Halves the compile time of such a file.
#pragma once

#include <fmt/format.h>

FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<buffer_context<char>>, locale_ref);
}
FMT_END_NAMESPACE

#include <spdlog/spdlog.h>
