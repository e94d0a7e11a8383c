#include "device/policy_memory.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

size_t rows_of(const HeadStream<float>& stream, const DevicePolicy& policy) {
  const size_t capacity = size_t(policy.memory.capacity);
  return policy.needs.rows_from >= 0 ? std::max(capacity, size_t(stream.prompt)) : capacity;
}
size_t weights_pitch(const HeadStream<float>& stream, const DevicePolicy& policy) {
  return policy.split ? std::max(rows_of(stream, policy), size_t(stream.tokens)) : rows_of(stream, policy);
}
// Logits of rows with the recorded query need separate products.
bool keeps_recorded(const DevicePolicy& policy) { return policy.moves || policy.memory.own_rows > 0; }

}  // namespace

PolicyStream::PolicyStream(Runtime& runtime, const HeadStream<float>& s) : memory(runtime) {
  values = memory.copy(s.values.data(), s.values.size());
  positions = memory.copy(s.positions.data(), s.positions.size());
  if (!s.classes.empty()) classes = memory.copy(s.classes.data(), s.classes.size());
  if (!s.inv_freq.empty()) inv_freq = memory.copy(s.inv_freq.data(), s.inv_freq.size());
  query_row = memory.take<int32_t>(size_t(s.tokens)), scored = memory.take<int32_t>(size_t(s.tokens));
  rotation = s.rotate();
  if (!rotation.active()) return;
  rotation.cosines = memory.copy(rotation.cosines, s.rotation->cosines.size());
  rotation.sines = memory.copy(rotation.sines, s.rotation->sines.size());
  rotation.positions = positions;
}

template <class Number>
const Number* PolicyStream::share(const Number* host, size_t count) {
  if (host == nullptr) return nullptr;
  const void*& there = sums[{host, count}];
  if (there == nullptr) there = memory.copy(host, count);
  return static_cast<const Number*>(there);
}

bool lists_attended(const DevicePolicy& policy) { return policy.chooses && policy.lists; }
size_t bit_heads(const DevicePolicy& policy) {
  return policy.heads_differ || lists_attended(policy) ? size_t(policy.memory.shape.heads) : 1;
}
size_t words_of(const HeadStream<float>& stream) { return (size_t(stream.tokens) + 31) / 32; }
int32_t parts_of(const DevicePolicy& policy) { return 1 + (policy.prefix ? 1 : 0) + (policy.set ? 1 : 0); }

PolicyTask make_task(const HeadStream<float>& stream, const DevicePolicy& policy, const float* keys,
                     const float* sink_logits, PolicyStream& shared, PolicyMemory& m) {
  const CacheStorage<float>& host = policy.memory;
  const HeadShape shape = host.shape;
  const size_t rows = rows_of(stream, policy), capacity = size_t(host.capacity), heads = size_t(shape.heads),
               tokens = size_t(stream.tokens), own = size_t(host.own_rows), blocks = size_t(shape.blocks),
               at_once = policy.needs.rows_from >= 0 ? size_t(PolicyRoom::prompt_rows(shape.heads)) : 1;
  PolicyTask b{};
  b.storage = host;
  b.storage.keys = keys, b.storage.values = shared.values;
  b.storage.token = m.take<int32_t>(capacity), b.storage.mark = m.take<uint8_t>(capacity);
  b.storage.score = m.like(host.score, capacity);
  b.storage.num = m.like(host.num, capacity), b.storage.den = m.like(host.den, capacity);
  b.storage.slot = m.like(host.slot, capacity), b.storage.coding = m.like(host.coding, capacity);
  b.storage.free_slots = m.like(host.free_slots, own);
  b.storage.own_keys = m.like(host.own_keys, own * blocks * size_t(shape.dim));
  b.storage.own_values = m.like(host.own_values, own * blocks * size_t(shape.v_dim));
  b.storage.copies = m.take<int32_t>(tokens), b.storage.evicted = m.take<int32_t>(tokens);
  b.storage.counts = m.take<int32_t>(Count::kCounts);
  b.state = {m.take<double>(policy.state.size()), policy.state.size()};
  const size_t all_rows = std::max(rows, tokens);  // a prompt's row may be read head by head
  b.scratch.rows = int32_t(rows);
  b.scratch.step = {m.take<float>(rows),
                    m.take<float>(rows),
                    m.take<double>(rows),
                    policy.by_head ? m.take<double>(heads * (policy.needs.rows_from >= 0 ? all_rows : rows)) : nullptr,
                    policy.chooses ? m.take<uint8_t>(heads * rows) : nullptr,
                    nullptr,
                    policy.by_head ? m.take<double>(heads) : nullptr};
  b.scratch.products = m.take<float>(heads * at_once * rows);
  b.scratch.weights_pitch = int32_t(weights_pitch(stream, policy));
  b.scratch.weights = m.take<float>(size_t(parts_of(policy)) * heads * size_t(b.scratch.weights_pitch));
  b.scratch.recorded = keeps_recorded(policy) ? m.take<float>(heads * rows) : nullptr;
  if (host.coding != nullptr) b.scratch.row = m.take<double>(size_t(RowCoder::scratch_doubles(shape)));
  b.scratch.of_token = policy.split ? m.take<float>(tokens) : nullptr;
  m.end = m.take<PolicyEnd>(1);

  const size_t prompt = size_t(stream.prompt);
  PolicyInput& in = b.input;
  in.query_row = shared.query_row, in.scored = shared.scored;
  in.sink_logits = sink_logits == nullptr ? nullptr : sink_logits + policy.first_head;
  in.column_sums = shared.share(policy.column_sums, heads * prompt);
  in.column_max_sums = shared.share(policy.column_max_sums, prompt);
  in.future_sums = shared.share(policy.future_sums, heads * tokens);
  const size_t dim = size_t(shape.dim), pairs = stream.inv_freq.size();
  in.known = {shared.share(policy.known.means, heads * dim), shared.share(policy.known.sizes, heads * pairs),
              shared.share(policy.known.directions, heads * dim), shared.share(policy.known.channels, heads * dim)};
  in.positions = shared.positions, in.classes = shared.classes;
  in.rope = {shared.inv_freq, int32_t(stream.inv_freq.size()), stream.interleaved, stream.attention_factor};
  in.rule = stream.rule;
  if (policy.moves) in.rotation = shared.rotation;
  in.tokens = stream.tokens, in.prompt = stream.prompt;
  b.rules = policy.rules, b.coder = policy.coder, b.end = m.end, b.rows_from = policy.needs.rows_from,
  b.max_rows = policy.max_rows;
  b.streams_prompt = policy.streams_prompt, b.observes = policy.observes, b.chooses = policy.chooses,
  b.reweights = policy.reweights;
  b.split = policy.split;
  if (policy.coder.by_row()) {
    b.coder.rope.inv_freq = shared.inv_freq, b.coder.positions = shared.positions;
    for (PartCoder* part : {&b.coder.key, &b.coder.value})
      part->numbers = shared.share(part->numbers, size_t(part->count));
  }
  b.output.prefix = policy.prefix, b.output.set = policy.set;
  b.output.words = int32_t(words_of(stream)), b.output.bits_by_head = bit_heads(policy) > 1;
  return b;
}

size_t device_bytes_of(const HeadStream<float>& stream, const DevicePolicy& policy) {
  const size_t rows = rows_of(stream, policy), heads = size_t(policy.memory.shape.heads),
               tokens = size_t(stream.tokens);
  const size_t own = size_t(policy.memory.own_rows) * size_t(policy.memory.shape.blocks) *
                     size_t(policy.memory.shape.dim + policy.memory.shape.v_dim) * sizeof(float);
  const size_t of_rows = 48 + heads * (8 * sizeof(float) + 9);
  return rows * of_rows + own + policy.state.size() * sizeof(double) + tokens * 16 +
         size_t(parts_of(policy)) * heads * weights_pitch(stream, policy) * sizeof(float) +
         (policy.needs.rows_from >= 0 ? heads * tokens * sizeof(double) : 0);
}

void fetch_policy(Runtime& runtime, const HeadStream<float>& stream, const PolicyTask& task,
                  const DevicePolicy& policy) {
  const CacheStorage<float>&from = task.storage, &to = policy.memory;
  const auto fetch = [&](auto* host, const auto* device, size_t count) {
    if (host != nullptr) runtime.download(host, device, count * sizeof(*host));
  };
  const size_t capacity = size_t(to.capacity), own = size_t(to.own_rows * to.shape.blocks);
  fetch(to.token, from.token, capacity), fetch(to.mark, from.mark, capacity);
  fetch(to.score, from.score, capacity), fetch(to.slot, from.slot, capacity);
  fetch(to.num, from.num, capacity), fetch(to.den, from.den, capacity);
  fetch(to.coding, from.coding, capacity);
  fetch(to.free_slots, from.free_slots, size_t(to.own_rows));
  fetch(to.own_keys, from.own_keys, own * size_t(to.shape.dim));
  fetch(to.own_values, from.own_values, own * size_t(to.shape.v_dim));
  fetch(to.copies, from.copies, size_t(stream.tokens)), fetch(to.evicted, from.evicted, size_t(stream.tokens));
  fetch(to.counts, from.counts, Count::kCounts);
  if (!policy.state.empty()) runtime.download(policy.state.data(), task.state.data(), policy.state.size_bytes());
}

}  // namespace kvreplay
