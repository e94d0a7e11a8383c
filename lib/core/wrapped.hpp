#pragma once
#include "core/selecting.hpp"

namespace kvreplay {

// A scorer inside another method: one of the structs of `Scorers`, chosen by `kind`. The wrapping method uses its
// prompt scores, its protection, its needs and the options that its variant implies, and selects the kept tokens
// itself. Scores must not depend on the budget, so a scorer is resolved for a budget that holds the whole prompt.
template <class Scorers>
struct Wrapped : Scorers {
  static constexpr int32_t kinds = Scorers::kinds;
  int32_t kind = Scorers::usual;

  KVR_FN decltype(auto) visit(auto&& f) { return Scorers::pick(*this, kind, f); }
  KVR_FN decltype(auto) visit(auto&& f) const { return Scorers::pick(*this, kind, f); }

  const char* name() const {
    return visit([]<class P>(const P&) { return P::info.name; });
  }
  void set_options(CommonOptions& options) const {
    visit([&]<class P>(const P& p) {
      if constexpr (P::hooks.has(Hook::set_options)) P::set_options(p, options);
    });
  }
  void resolve(MethodContext context) {
    context.budget = {context.prompt_tokens, double(context.prompt_tokens)};
    visit([&](auto& p) { p.resolve(context); });
  }
  int64_t state_doubles(const MethodContext& context) const {
    return visit([&](const auto& p) -> int64_t { return p.layout(context).state_doubles; });
  }
  PromptNeeds needs(const MethodContext& context) const {
    return visit([&]<class P>(const P& p) {
      if constexpr (HasNeeds<P>) return p.needs(context);
      else return PromptNeeds{};
    });
  }
  // Prompt tokens that no selection may evict.
  KVR_FN Protect protection() const {
    return visit([](const auto& p) { return p.protection(); });
  }
  // `state`: as many doubles as state_doubles() returned.
  KVR_FN void bind(std::span<double> state) {
    visit([&]<class P>(P& p) {
      if constexpr (HasState<P>) p.state = state;
    });
  }
  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    visit([&](auto& p) { p.read_prompt(team, prompt, cache); });
  }
};

}  // namespace kvreplay
