#pragma once
#include "core/share.hpp"
#include "methods/snapkv.hpp"

namespace kvreplay {

// PyramidKV, Cai et al. 2024: lower layers keep more. B is the mean over the layers.
//  1. mn = B/beta, mx = 2B - mn.
//  2. If mx >= P-w: mx = P-w, mn = 2B - mx.
//  3. If not P >= mx >= mn >= w, every layer gets B: plain SnapKV.
//  4. Layer l of L keeps round_half_even(mx - l (mx-mn)/(L-1)) tokens, window included, by SnapKV.
struct PyramidKv : SnapKv {
  static constexpr MethodInfo info{
      .name = "pyramidkv",
      .title = "SnapKV with budgets that fall from layer to layer",
      .source = "PyramidKV, Cai et al. 2024, section 4",
      .tier = 1,
      .memory =
          "the layer's budget of prompt tokens and every later one; B differs per layer, so add the bytes of "
          "all of them (extras: tokens_of_all_layers)",
      .deviation =
          "the slope is a real number, as in the later library; variant kvfactory is the integer form of "
          "the release",
      .streams = false,
      .default_phase = Phase::oneshot,
      .shared_over = SharedOver::head,
  };
  static constexpr Hooks hooks{"read_prompt evict report layout needs protection voters set_options state"};
  enum class Rule { standard, kvpress, kvfactory };
  enum class Votes { snapkv };
  Rule rule = Rule::standard;
  Votes scorer = Votes::snapkv;
  double beta = 20, mean_budget = kUnset;
  int32_t layers = kDerived, layer = kDerived;
  bool sloped = false;
  double all_layers = 0;

  static void declare(auto& d) {
    d.choice("variant", &PyramidKv::rule, {"default", "kvpress", "kvfactory"}, "which formula and window");
    d.choice("scorer", &PyramidKv::scorer, {"snapkv"}, "scorer; its parameters are written next to it");
    declare_votes<PyramidKv>(d);
    protect<PyramidKv>(d);
    d.real("beta", &PyramidKv::beta, {1, 1e9}, "the last layer's budget is about B / beta, > 1");
    d.integer("L", &PyramidKv::layers, {1, kManyTokens}, "layers of the model", "the trace's n_layers");
    d.integer("l", &PyramidKv::layer, {0, kManyTokens}, "number of this layer, from 0", "the layer's");
    d.real("mean_budget", &PyramidKv::mean_budget, {0, kManyTokens}, "mean budget of the layers, in tokens",
           "B; with variant kvpress before rounding, f * P");
  }
  void resolve(const MethodContext& context) {
    if (rule == Rule::kvpress) variant = Variant::kvpress;
    SnapKv::resolve(context);
    if (beta <= 1) throw ParameterError("beta", "beta must be greater than 1; 20 is the published value");
    if (layer == kDerived) layer = context.layer;
    if (layers == kDerived) layers = std::max(layer + 1, context.n_layers);
    if (layer >= layers)
      throw ParameterError("l", "layer " + std::to_string(layer) + " is not one of the L = " + std::to_string(layers) +
                                    " layers, which are counted from 0; set both L and l, or neither");
    if (mean_budget == kUnset)
      mean_budget = rule == Rule::kvpress && context.budget.requested_tokens > 0 ? context.budget.requested_tokens
                                                                                 : context.budget.tokens;
    for (int32_t l = 0; l < layers; ++l) all_layers += tokens_of(l, context);
    set_budget(tokens_of(layer, context));
    if (sinks + recent > budget) throw protection_error(sinks, recent, budget);
  }
  static void set_options(const PyramidKv& m, CommonOptions& options) {
    if (m.rule == Rule::kvpress) options.gqa_aggregate = Aggregate::mean;
  }
  void report(auto& extras, const auto&) const {
    extras["layer_budget"] = budget;
    extras["tokens_of_all_layers"] = all_layers;
    extras["same_for_all_layers"] = sloped ? 0 : 1;
  }

 private:
  int32_t tokens_of(int32_t l, const MethodContext& context) {
    if (rule == Rule::kvfactory) return integer_tokens(l, context);
    const Pyramid pyramid{mean_budget, beta, window, context.prompt_tokens, layers};
    sloped = pyramid.slopes();
    return pyramid.tokens(l);
  }
  // The release uses whole numbers; the window is subtracted before and added afterwards.
  int32_t integer_tokens(int32_t l, const MethodContext& context) {
    const int32_t inner = int32_t(mean_budget) - window;
    if (context.prompt_tokens < int32_t(mean_budget)) return context.prompt_tokens;
    sloped = layers > 1 && inner > 0 && 2 * inner <= context.prompt_tokens;
    if (!sloped) return int32_t(mean_budget);
    const int32_t most = std::min(2 * inner - int32_t(inner / beta), context.prompt_tokens - window);
    const double fall = 2 * (most - inner);  // mx - mn, for mn = 2 inner - mx
    return most - l * int32_t(std::floor(fall / (layers - 1))) + window;
  }
};

}  // namespace kvreplay
