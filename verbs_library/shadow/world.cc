#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/made_once.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

World& world() {
  static std::atomic<World*> everything{nullptr};
  return made_once(everything, [] { return new World; });
}

bool is_shadow(const ibv_context* context) { return context->ops.poll_cq == poll_completions; }

}  // namespace ppmr::verbs
