#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

World& world() {
  static World& everything = *new World;  // never destroyed: threads use it until the process ends
  return everything;
}

bool is_shadow(const ibv_context* context) { return context->ops.poll_cq == poll_completions; }

}  // namespace ppmr::verbs
