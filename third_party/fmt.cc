// clang names one template of libfmt differently from g++, which has compiled Debian's library. A
// build with clang therefore needs its own instance of the one that spdlog.h declares as external.
#ifdef __clang__
#include <fmt/format.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                               basic_format_args<buffer_context<char>>, locale_ref);
}
FMT_END_NAMESPACE
#endif
