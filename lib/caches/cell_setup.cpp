#include "caches/cell_setup.hpp"

#include "base/text.hpp"
#include "exact/oracle_needs.hpp"
#include "trace/uniforms.hpp"

namespace kvreplay {

bool has_cache_for_each_query_head(const Cell& cell) { return cell.options().gqa_level == GqaLevel::query; }

template <class Real>
CacheSetup cell_setup(const Cell& cell, const HeadStream<Real>& stream) {
  // A layer that decides as one must draw the same numbers whichever of its kv heads are selected.
  const uint32_t kv_head = stream.shape.blocks > 1 ? 0 : uint32_t(cell.place.kv_head);
  const Rng rng{cell.seed.value_or(0), cell.prompt_rank, uint32_t(cell.place.layer), kv_head, {}};
  MethodContext context = cell.context();
  context.shape = stream.shape;
  context.window = stream.window;
  if (has_cache_for_each_query_head(cell)) context.shape.heads = 1;
  const OracleNeeds asks = cell.variant->values.oracle_needs();
  if (asks.median_key_distance) context.median_key_distance = median_key_distance(stream, rng);
  if (asks.largest_query_norm) context.largest_query_norm = largest_query_norm(stream);
  CacheSetup setup{BoundMethod(cell.variant->values, context), cell.options(), rng};
  setup.options.row_format = row_format_at(setup.method, cell.options());
  setup.prompt_streams = cell.variant->prompt_streams;
  return setup;
}

void inject(const Cell& cell, CacheSetup& setup, std::vector<std::vector<double>>& held) {
  if (cell.variant->uniforms.empty()) return;
  const std::vector<RngArray> arrays = setup.method.rng_arrays();
  for (size_t i = 0; i < arrays.size() && i < size_t(Rng::kArrays); ++i) {
    const RngArray& a = arrays[i];
    InjectedUniforms u = read_uniforms(cell.variant->uniforms, cell.place.prompt, cell.place.layer, cell.place.kv_head,
                                       {split_words(a.names), a.rounds, a.positions, a.slots});
    held.push_back(std::move(u.values));
    setup.rng.injected[i] = {held.back().data(), a.stream, u.positions, u.slots};
  }
}

template CacheSetup cell_setup(const Cell&, const HeadStream<float>&);
template CacheSetup cell_setup(const Cell&, const HeadStream<double>&);

}  // namespace kvreplay
