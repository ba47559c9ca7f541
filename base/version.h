// The version of ppmr, and the commit that it was built from.
#pragma once

namespace ppmr {

extern const char* const kVersion;  // "MAJOR.MINOR.PATCH"
extern const char* const kCommit;   // the value of --embed_label; empty: none was given

}  // namespace ppmr
