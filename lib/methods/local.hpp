#pragma once
#include "core/cut.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// "Local" of H2O's tables: the last W = B tokens, which is `window` under another name.
//  default  the last W tokens, the newest included.
//  lm_eval  the released band mask includes the diagonal at offset W: W + 1 tokens stay.
//  buzz     BUZZ's baseline: its sinks + window count as recent tokens, with positions inside the cache.
struct Local {
  static constexpr MethodInfo info{
      .name = "local",
      .title = "recent tokens only (H2O's name for window)",
      .source = "H2O, Zhang et al. 2023, baseline \"Local\"; BUZZ, baseline",
      .tier = 1,
      .memory = "B tokens; lm_eval one more",
      .deviation = "",
      .selects = true,
      .implied_layout = true,
  };
  static constexpr Hooks hooks{"evict set_options traits"};
  enum class Variant { plain, lm_eval, buzz };
  Variant variant = Variant::plain;
  CutPlan plan;

  static void declare(auto& d) {
    d.choice("variant", &Local::variant, {"default", "lm_eval", "buzz"}, "which definition of the window");
  }
  void resolve(const MethodContext& context) {
    plan = cut_plan(context, {});
    plan.budget += variant == Variant::lm_eval ? 1 : 0;
  }
  static void set_options(const Local& m, CommonOptions& options) {
    if (m.variant == Variant::buzz) options.positions = Positions::cache;
  }
  void traits(Traits& t) const { t.max_rows = plan.budget; }

  void evict(const Team auto& team, Cache auto& cache) { keep_newest(team, cache, plan, 0); }
};

}  // namespace kvreplay
