// Checks CRIU: where ppmr finds it, whether it works on this kernel, and which features it has.
#pragma once

#include "cli/doctor/diagnosis.h"
#include "preflight/node_facts.h"

namespace ppmr {

// `facts`: from gather_node_facts(). `why_none`: why there is no CRIU, if `facts.criu_path` is
// empty.
Diagnoses check_criu(const NodeFacts& facts, const std::string& why_none);

}  // namespace ppmr
