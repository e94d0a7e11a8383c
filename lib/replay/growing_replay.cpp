#include "replay/growing_replay.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "caches/cell_setup.hpp"
#include "core/wide.hpp"
#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

bool sees_later_rows(const MethodValues& values) {
  const OracleNeeds asks = values.oracle_needs();
  return values.sees_later_rows() || asks.median_key_distance || asks.largest_query_norm;
}

bool cuts_in_time(const Cell& cell) { return cuts_together(cell) && cell.options().phase == Phase::stream; }

// Decisions that need rows which have not arrived.
void refuse_oracles(const Cell& cell) {
  const auto& later = cell.variant->later;
  const auto sees = cell.allocator_says.find("sees_future");
  if (sees_later_rows(cell.variant->values) || (later != nullptr && sees_later_rows(later->values)) ||
      sees != cell.allocator_says.end())
    throw ConfigError(cell.method_name() +
                      " looks at rows that have not arrived yet: it can be replayed over recorded rows alone");
  if (cuts_in_time(cell) && cell.options().order == Order::evict_then_attend)
    throw ConfigError(cell.method_name() + " cuts the heads of all layers together before they attend, and a layer's " +
                      "rows depend on those of the layer before: leave out order, or set level: layer_head");
}

std::string failure_text(const Cell& cell, const Place& at, const std::string& why) {
  return fmt::format("{}, layer {}, kv head {}: {}", cell.method_name(), at.layer, at.kv_head, why);
}

void expect_alive(const HeadReplay<float>& replay) {
  for (const Decision<float>& d : replay.decisions())
    if (!d.alive()) throw ConfigError(failure_text(d.cell(), d.cell().place, d.failure));
}

// Numbers of head `head` of an array [heads, rows, width].
std::span<const float> head_of(std::span<const float> all, int32_t head, int32_t rows, int32_t width) {
  return all.subspan(size_t(head) * size_t(rows) * size_t(width), size_t(rows) * size_t(width));
}

void expect_numbers(std::span<const float> all, const char* name, int32_t heads, int32_t rows, int32_t width,
                    int32_t layer) {
  if (all.size() != size_t(heads) * size_t(rows) * size_t(width))
    throw ConfigError(fmt::format("layer {}: {} must be [{}, {}, {}]", layer, name, heads, rows, width));
  for (int32_t h = 0; h < heads; ++h) {
    const std::string problem = unusable_number(head_of(all, h, rows, width), width, h, 0, "row");
    if (!problem.empty()) throw ConfigError(fmt::format("layer {}: {} holds {}", layer, name, problem));
  }
}

// A cache that moves its tokens looks up how far each has moved.
void expect_positions(const HeadStream<float>& s, std::span<const int32_t> positions) {
  const bool moves = s.rotation != nullptr && s.rotation->pairs > 0;
  const int32_t most = moves ? s.positions.front() + int32_t(s.rotation->cosines.size()) / s.rotation->pairs - 1 : 0;
  int32_t before = s.positions[size_t(s.arrived() - 1)];
  for (const int32_t position : positions) {
    if (position < 0) throw ConfigError(fmt::format("position {} is negative", position));
    if (moves && (position <= before || position > most))
      throw ConfigError(
          fmt::format("position {} follows {}: positions must ascend, to {} at most, where the cache moves "
                      "them; use `positions: original`, or give more capacity",
                      position, before, most));
    before = position;
  }
}

}  // namespace

GrowingReplay::GrowingReplay(std::vector<Cell> cells, RunOptions options)
    : cells_(std::move(cells)), options_(std::move(options)) {
  WiderVectors::allowed = std::string(isa_path()) != "portable";
  options_.wanted = {Work{}}, options_.save = {}, options_.device = nullptr, options_.audit = false;
  options_.queries = {}, options_.needles = {}, options_.working_set = {};
  for (const Cell& cell : cells_) refuse_oracles(cell);
  (void)divide_budgets<float>(cells_, options_);
  for (const Cell& cell : cells_) refuse_oracles(cell);
  Reader reader(options_.tensors, scopes_of(cells_, true));
  const std::vector<Group> groups = group_cells(cells_, options_);
  std::vector<std::unique_ptr<Head>> heads(groups.size());
  FirstError error;
  for_each_on_threads(options_.jobs, groups.size(), error, [&](size_t g) { heads[g] = begun(groups[g], reader); });
  for (size_t g = 0; g < groups.size(); ++g) add(std::move(heads[g]), groups[g].first().place.layer);
  cuts_together_ = std::any_of(cells_.begin(), cells_.end(), cuts_in_time);
  if (!cuts_together_) return;
  const Place& at = cells_.front().place;
  if (reader.layers(at.trace, at.prompt).size() != layers_.size())
    throw ConfigError(cells_.front().method_name() + " cuts the heads of all layers together: select all layers");
  for (const Cell& cell : cells_)
    if (cell.common_cuts) cuts_[{cell.place.layer, cell.place.kv_head}] = *cell.common_cuts;
}

auto GrowingReplay::begun(const Group& group, Reader& reader) const -> std::unique_ptr<Head> {
  HeadRequest request = group.request;
  request.all_queries = true;
  auto head = std::make_unique<Head>();
  head->stream = reader.load<float>(request);
  if (!head->stream.up_values.empty())
    throw ConfigError(fmt::format("layer {} shares latents between its heads: its rows cannot arrive one by one",
                                  request.place.layer));
  head->first_kv_head = std::max(0, request.place.kv_head);
  head->replay = std::make_unique<HeadReplay<float>>(head->stream, options_);
  for (const auto& decision : group.decisions) head->replay->add(decision);
  head->replay->begin(options_.stop ? options_.stop : never);
  expect_alive(*head->replay);
  return head;
}

void GrowingReplay::add(std::unique_ptr<Head> head, int32_t number) {
  Layer& layer = layers_[number];
  const HeadShape& shape = head->stream.shape;
  layer.shape.q_heads += shape.heads, layer.shape.kv_heads += shape.blocks;
  layer.shape.dim = shape.dim, layer.shape.v_dim = shape.v_dim;
  layer.out.resize(size_t(layer.shape.q_heads) * size_t(shape.v_dim));
  const int32_t group = shape.heads / shape.blocks;
  head->replay->on_row([&layer, group](const Cell& cell, int32_t h, int32_t, std::span<const float> out) {
    const size_t first = size_t(cell.place.kv_head * group + h) * out.size();
    std::copy(out.begin(), out.end(), layer.out.begin() + int64_t(first));
  });
  layer.heads.push_back(std::move(head));
}

auto GrowingReplay::at(int32_t layer) const -> const Layer& {
  const auto found = layers_.find(layer);
  if (found != layers_.end()) return found->second;
  std::string held;
  for (const auto& [number, of] : layers_) held += (held.empty() ? "" : ", ") + std::to_string(number);
  throw ConfigError(fmt::format("layer {} is not replayed: known are {}", layer, held));
}

auto GrowingReplay::shape(int32_t layer) const -> LayerShape { return at(layer).shape; }

// A token's rows become part of each head's stream.
void GrowingReplay::take_token(Layer& layer, const ArrivingRows& rows, int32_t row) const {
  const LayerShape& all = layer.shape;
  const auto copy = [&](std::span<const float> from, int32_t head, int32_t width, float* to) {
    const auto one = head_of(from, head, rows.count, width).subspan(size_t(row) * size_t(width), size_t(width));
    std::copy(one.begin(), one.end(), to);
  };
  for (const auto& head : layer.heads) {
    HeadStream<float>& s = head->stream;
    const int32_t t = s.arrived(), group = s.shape.heads / s.shape.blocks;
    for (int32_t b = 0; b < s.shape.blocks; ++b) {
      const int64_t at = int64_t(b) * s.tokens + t;
      copy(rows.k, head->first_kv_head + b, all.dim, s.keys.data() + at * all.dim);
      copy(rows.v, head->first_kv_head + b, all.v_dim, s.values.data() + at * all.v_dim);
    }
    for (int32_t h = 0; h < s.shape.heads; ++h)
      copy(rows.q, head->first_kv_head * group + h, all.dim,
           s.queries.data() + (int64_t(h) * s.query_rows + s.query_row[size_t(t)]) * all.dim);
    if (!rows.positions.empty()) s.positions[size_t(t)] = rows.positions[size_t(row)];
    else s.positions[size_t(t)] = t == 0 ? 0 : s.positions[size_t(t) - 1] + 1;
    --s.waiting;
  }
}

template <class Work>
void GrowingReplay::each_cache(const Layer& layer, Work work) const {
  for (const auto& head : layer.heads)
    for (const Decision<float>& d : head->replay->decisions())
      for (const auto& cache : d.caches) work(d.cell().place, *cache);
}

bool GrowingReplay::waits(const Layer& layer) const {
  bool some = false;
  each_cache(layer,
             [&](const Place&, const CacheReplay<float>& cache) { some = some || cache.steps.waits_for_heads(); });
  return some;
}

void GrowingReplay::expect_no_waiting(int32_t number, const Layer& layer) const {
  if (waits(layer))
    throw ConfigError(
        fmt::format("layer {} waits for a cut that the heads of all layers make together: give the other "
                    "layers their rows up to the same token first",
                    number));
}

// Cuts once every layer has taken the token at which the cut is due.
void GrowingReplay::cut_together() {
  for (const auto& [number, layer] : layers_)
    if (!waits(layer)) return;
  const Cell& cell = cells_.front();
  std::vector<HeadScores> all;
  for (const auto& [number, layer] : layers_)
    each_cache(layer, [&](const Place& at, CacheReplay<float>& cache) {
      all.push_back(cache.steps.waiting_scores());
      all.back().layer = at.layer, all.back().kv_head = at.kv_head;
    });
  const auto rows = cell.method().host.cut_together(cell.variant->values.policy(), all);
  size_t h = 0;
  for (const auto& [number, layer] : layers_) {
    const std::lock_guard lock(layer.mutex);
    each_cache(layer, [&](const Place& at, CacheReplay<float>& cache) {
      TokenLists& lists = cuts_[{at.layer, at.kv_head}];
      for (const int32_t row : rows[h]) lists.flat.push_back(all[h].tokens[size_t(row)]);
      lists.close(), ++h;
      try {
        cache.steps.cut_together(given_lists(lists));
      } catch (const ReplayError& e) {
        throw ConfigError(failure_text(cell, at, e.what()));
      }
    });
  }
}

void GrowingReplay::step(int32_t number, const ArrivingRows& rows, std::span<float> out) {
  auto& layer = const_cast<Layer&>(at(number));
  std::unique_lock together(together_, std::defer_lock);
  if (cuts_together_) together.lock();
  expect_fit(number, layer, rows);
  for (int32_t row = 0; row < rows.count; ++row) {
    if (cuts_together_) expect_no_waiting(number, layer);
    take_row(layer, rows, row, out);
    if (cuts_together_) cut_together();
  }
}

void GrowingReplay::expect_fit(int32_t number, const Layer& layer, const ArrivingRows& rows) const {
  const LayerShape& shape = layer.shape;
  expect_numbers(rows.q, "q", shape.q_heads, rows.count, shape.dim, number);
  expect_numbers(rows.k, "k", shape.kv_heads, rows.count, shape.dim, number);
  expect_numbers(rows.v, "v", shape.kv_heads, rows.count, shape.v_dim, number);
  const std::lock_guard lock(layer.mutex);
  const HeadStream<float>& stream = layer.heads.front()->stream;
  expect_positions(stream, rows.positions);
  if (const int32_t room = stream.waiting; rows.count > room)
    throw ConfigError(fmt::format("layer {}: {} rows arrive, but there is room for {} more: give a larger capacity",
                                  number, rows.count, room));
}

void GrowingReplay::take_row(Layer& layer, const ArrivingRows& rows, int32_t row, std::span<float> out) const {
  const std::lock_guard lock(layer.mutex);
  for (const auto& head : layer.heads) expect_alive(*head->replay);
  take_token(layer, rows, row);
  for (const auto& head : layer.heads) {
    head->replay->advance(head->stream.arrived(), never);
    expect_alive(*head->replay);
  }
  const int32_t width = layer.shape.v_dim;
  for (int32_t h = 0; h < layer.shape.q_heads; ++h)
    std::copy_n(layer.out.begin() + int64_t(h) * width, width, out.begin() + (int64_t(h) * rows.count + row) * width);
}

std::vector<std::vector<int32_t>> GrowingReplay::kept(int32_t number, int32_t kv_head) const {
  const Layer& layer = at(number);
  const std::lock_guard lock(layer.mutex);
  std::vector<std::vector<int32_t>> lists;
  for (const auto& head : layer.heads)
    for (const Decision<float>& d : head->replay->decisions())
      for (size_t i = 0; i < d.cells.size(); ++i) {
        if (d.cells[i]->place.kv_head != kv_head) continue;
        for (const auto& cache : d.caches)
          if (d.is_replayed_by(i, *cache)) lists.push_back(cache->account.tokens_held());
      }
  if (lists.empty()) throw ConfigError(fmt::format("layer {} has no kv head {}", number, kv_head));
  return lists;
}

double GrowingReplay::bytes() const {
  double sum = 0;
  for (const auto& [number, layer] : layers_) {
    const std::lock_guard lock(layer.mutex);
    for (const auto& head : layer.heads)
      for (const Decision<float>& d : head->replay->decisions())
        for (size_t i = 0; i < d.cells.size(); ++i) sum += bytes_held(d, i, head->stream);
  }
  return sum;
}

}  // namespace kvreplay
