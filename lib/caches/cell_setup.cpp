#include "caches/cell_setup.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "exact/oracle_needs.hpp"
#include "measures/sums.hpp"
#include "trace/uniforms.hpp"

namespace kvreplay {

bool has_cache_for_each_query_head(const Cell& cell) { return cell.options().gqa_level == GqaLevel::query; }
bool has_cache_for_each_kv_head(const Cell& cell) { return cell.options().serving.pages.share_a_table(); }

template <class Real>
CacheSetup cell_setup(const Cell& cell, const HeadStream<Real>& stream) {
  // A layer that decides as one must draw the same numbers whichever of its kv heads are selected.
  const uint32_t kv_head = stream.shape.blocks > 1 ? 0 : uint32_t(cell.place.kv_head);
  const Rng rng{cell.seed.value_or(0), cell.prompt_rank, uint32_t(cell.place.layer), kv_head, {}};
  MethodContext context = cell.context();
  context.shape = stream.shape;
  context.window = stream.window, context.query_heads = stream.shape.heads;
  if (stream.turns.any()) context.turn_step = stream.turns.step.data();
  if (has_cache_for_each_query_head(cell)) context.shape.heads = 1;
  const HeadShape layer = context.shape;
  if (has_cache_for_each_kv_head(cell)) context.shape = layer.one_block();
  const OracleNeeds asks = cell.variant->values.oracle_needs();
  if (asks.median_key_distance) context.median_key_distance = median_key_distance(stream, rng);
  if (asks.largest_query_norm) context.largest_query_norm = largest_query_norm(stream);
  CacheSetup setup{BoundMethod(cell.variant->values, context), cell.options(), rng};
  setup.options.row_format = row_format_at(setup.method, cell.options());
  setup.prompt_streams = cell.variant->prompt_streams;
  setup.later = cell.variant->later;
  const Pages& pages = setup.options.serving.pages;
  if (!pages.whole() || setup.options.gqa_level == GqaLevel::layer || layer.blocks == 1) return setup;
  context.shape = layer.one_block();
  for (int32_t b = 0; b < layer.blocks; ++b) setup.heads.emplace_back(cell.variant->values, context);
  return setup;
}

namespace {

void inject(const Cell& cell, const BoundMethod& method, int32_t kv_head, Rng& rng,
            std::vector<std::vector<double>>& held) {
  const std::vector<RngArray> arrays = method.rng_arrays();
  for (size_t i = 0; i < arrays.size() && i < size_t(Rng::kArrays); ++i) {
    const RngArray& a = arrays[i];
    InjectedUniforms u = read_uniforms(cell.variant->uniforms, cell.place.prompt, cell.place.layer, kv_head,
                                       {split_words(a.names), a.rounds, a.positions, a.slots});
    held.push_back(std::move(u.values));
    rng.injected[i] = {held.back().data(), a.stream, u.positions, u.slots};
  }
}

}  // namespace

void inject(const Cell& cell, int32_t kv_head, CacheSetup& setup, std::vector<std::vector<double>>& held) {
  if (cell.variant->uniforms.empty()) return;
  inject(cell, setup.method, kv_head, setup.rng, held);
  for (size_t b = 0; b < setup.heads.size(); ++b) {
    setup.head_rngs.push_back(setup.rng);
    inject(cell, setup.heads[b], int32_t(b), setup.head_rngs.back(), held);
  }
}

template CacheSetup cell_setup(const Cell&, const HeadStream<float>&);
template CacheSetup cell_setup(const Cell&, const HeadStream<double>&);

namespace {

struct Charged {
  Metric to;
  int64_t Ledger::*from;
};
constexpr Charged kRows[] = {
    {"peak_bytes", &Ledger::peak_bytes},
    {"key_floats", &Ledger::peak_key_floats},
    {"value_floats", &Ledger::peak_value_floats},
    {"weight_floats", &Ledger::peak_weight_floats},
};
constexpr Charged kBesides[] = {
    {"aux_bytes", &Ledger::peak_aux_bytes},
    {"score_bytes", &Ledger::score_bytes},
    {"sketch_bytes", &Ledger::sketch_bytes},
    {"index_bytes", &Ledger::index_bytes},
};

double ratio(int64_t sum, int64_t count) { return count > 0 ? double(sum) / double(count) : 0.0; }

void measure_pages(const Ledger& ledger, Measured& to) {
  const PageLedger& pages = ledger.pages;
  if (pages.points == 0) return;
  to["resident_pages"] = ratio(pages.resident_sum, pages.points);
  to["resident_pages_peak"] = double(pages.resident_peak);
  to["reclaimed_bytes"] = ratio(pages.freed_sum, pages.points) * ledger.page_bytes;
  to["fragmentation"] = pages.fragmentation_sum / double(pages.points);
}

}  // namespace

HeldTokens exact_cache_tokens(int32_t tokens, int32_t prompt, LayerWindow window) {
  const int32_t first = std::max(prompt - 1, 0);  // the newest token of the first S_t
  int64_t sum = 0;
  int32_t most = 0;
  for (int32_t t = first; t < tokens; ++t) sum += window.seen(t), most = std::max(most, window.seen(t));
  return {most, prompt > 0 ? window.seen(prompt - 1) : 0, ratio(sum, tokens - first)};
}

void measure_sizes(std::span<const Ledger* const> ledgers, const CellSizes& sizes, Measured& to) {
  const auto charge = [](bool once, double so_far, double amount) {
    return once ? std::max(so_far, amount) : so_far + amount;
  };
  const bool one_index = sizes.shared && !sizes.own_index;
  double kept = 0, floats = 0, read = 0, rows_bytes = 0, besides = 0, final_rows = 0, final_besides = 0;
  double prompt_rows = 0, prompt_besides = 0, index = 0;
  int64_t attended = 0, rows = 0, read_steps = 0, evictions = 0, quantised = 0, recoded = 0, peak_kept = 0,
          peak_attended = 0;
  std::vector<double> ages;
  for (const Ledger* ledger : ledgers) {
    const Ledger& l = *ledger;
    for (const Charged& c : kRows) to[c.to] = charge(sizes.shared, to[c.to].value_or(0), double(l.*c.from));
    for (const Charged& c : kBesides) to[c.to] = charge(one_index, to[c.to].value_or(0), double(l.*c.from));
    final_rows = charge(sizes.shared, final_rows, double(l.final_bytes - l.final_aux_bytes));
    final_besides = charge(one_index, final_besides, double(l.final_aux_bytes));
    prompt_rows = charge(sizes.shared, prompt_rows, double(l.prompt_bytes - l.prompt_aux_bytes));
    prompt_besides = charge(one_index, prompt_besides, double(l.prompt_aux_bytes));
    peak_kept = std::max(peak_kept, l.peak_kept), peak_attended = std::max(peak_attended, l.peak_attended);
    kept += ratio(l.kept_sum, l.kept_steps);
    attended += l.attended_sum, rows += l.attended_rows;
    rows_bytes = charge(sizes.shared, rows_bytes, ratio(l.bytes_sum - l.aux_sum, l.kept_steps));
    besides = charge(one_index, besides, ratio(l.aux_sum, l.kept_steps));
    index = charge(one_index, index, l.final_index_bytes);
    floats = charge(sizes.shared, floats, double(l.peak_floats));
    read += ratio(l.read_sum, l.read_steps), read_steps += l.read_steps;
    ages.insert(ages.end(), l.evicted_ages.begin(), l.evicted_ages.end());
    evictions += l.evictions, quantised += l.quantised, recoded += l.recoded;
    to.select_s += l.select_s, to.attend_s += l.attend_s;
    to.extras.insert(l.extras.begin(), l.extras.end());
  }
  to["peak_kept_tokens"] = double(peak_kept), to["peak_attended_tokens"] = double(peak_attended);
  to["mean_kept_tokens"] = kept / double(ledgers.size());
  to["mean_attended_tokens"] = ratio(attended, rows);
  to["mean_bytes"] = rows_bytes + besides, to["final_bytes"] = final_rows + final_besides;
  to["total_bytes"] = *to["peak_bytes"] + *to["aux_bytes"];
  to["equivalent_tokens"] = floats / sizes.row_floats;
  to["n_evictions"] = double(evictions), to["n_quantised"] = double(quantised);
  to["n_recoded"] = double(recoded);
  if (read_steps > 0) to["read_bytes_per_step"] = read;
  to["index_stored_bytes"] = index;
  measure_pages(*ledgers.front(), to);
  if (!ages.empty()) to["median_evicted_age_tokens"] = quantile(ages, 0.5);
  if (const auto bound = to.extras.find("bound_log10_tokens"); bound != to.extras.end())
    to["bound_log10_tokens"] = bound->second;
  const double row_bytes = double(sizes.row_floats) * sizes.stored_bytes;
  to["full_bytes"] = sizes.full.at_end * row_bytes, to["mean_full_bytes"] = sizes.full.mean * row_bytes;
  if (sizes.full.after_prompt == 0) return;
  to["prompt_bytes"] = prompt_rows + prompt_besides;
  to["prompt_full_bytes"] = sizes.full.after_prompt * row_bytes;
}

}  // namespace kvreplay
