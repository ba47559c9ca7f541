#pragma once

namespace ppmr {

inline constexpr const char* kVersion = "0.1.0";  // the same version as in debian/changelog

}  // namespace ppmr
