#include "backend/device_chains.hpp"

#include <algorithm>
#include <map>

#include "backend/query_rows.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kPiece = 4096;                  // tokens of a launch
constexpr size_t kNoteBytes = size_t{256} << 20;  // of the lists of a launch

size_t rows_of(const HeadStream<float>& stream, const ChainOrder& order) {
  const size_t capacity = size_t(order.memory.capacity);
  return order.needs.rows_from >= 0 ? std::max(capacity, size_t(stream.prompt)) : capacity;
}
size_t weights_pitch(const HeadStream<float>& stream, const ChainOrder& order) {
  return order.split ? std::max(rows_of(stream, order), size_t(stream.tokens)) : rows_of(stream, order);
}
// Logits of rows with the query as recorded are products of their own.
bool keeps_recorded(const ChainOrder& order) { return order.moves || order.memory.own_rows > 0; }
bool lists_attended(const ChainOrder& order) { return order.chooses && order.lists; }
size_t bit_heads(const ChainOrder& order) {
  return order.heads_differ || lists_attended(order) ? size_t(order.memory.shape.heads) : 1;
}
size_t words_of(const HeadStream<float>& stream) { return (size_t(stream.tokens) + 31) / 32; }

}  // namespace

// Arrays of one chain, which go with it.
struct DeviceChains::Memory {
  explicit Memory(Runtime& r) : runtime(r) {}
  Runtime& runtime;
  std::vector<DeviceArray<std::byte>> arrays;
  DeviceArray<std::byte> cells, bits, steps, tokens, num, den;  // of a portion of rows; of a launch

  template <class T>
  T* take(size_t count) {
    arrays.emplace_back(runtime, count * sizeof(T));
    return reinterpret_cast<T*>(arrays.back().data());
  }
  // Like an array of the host, or null.
  template <class T>
  T* like(const T* host, size_t count) {
    return host == nullptr ? nullptr : take<T>(count);
  }
  template <class T>
  const T* copy(const T* host, size_t count) {
    if (host == nullptr) return nullptr;
    T* const to = take<T>(count);
    runtime.upload(to, host, count * sizeof(T));
    return to;
  }
  // Grows only.
  template <class T>
  T* reuse(DeviceArray<std::byte>& array, size_t count) {
    if (array.size() < count * sizeof(T)) array = DeviceArray<std::byte>(runtime, count * sizeof(T));
    return reinterpret_cast<T*>(array.data());
  }
  ChainEnd* end = nullptr;
  std::vector<ChainRow> of_cells;
};

struct DeviceChains::Group {
  ChainPrograms programs;
  std::vector<size_t> chains;  // numbers of them
  DeviceArray<std::byte> policies, bodies;
  size_t policy_bytes = 0, shared = 0;
};

struct DeviceChains::OfStream {
  Memory memory;
  const float* values = nullptr;
  const int32_t* positions = nullptr;
  const uint8_t* classes = nullptr;
  const double* inv_freq = nullptr;
  Rotation<float> rotation;
  int32_t *query_row = nullptr, *scored = nullptr;  // [tokens]
  DeviceArray<std::byte> queries;
  int64_t query_head = 0;
  std::vector<int32_t> rows;  // of query_row and scored, on the host
  std::map<std::pair<const double*, size_t>, const double*>
      sums;  // what several chains read; place and extent

  OfStream(Runtime& runtime, const HeadStream<float>& s) : memory(runtime) {
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
  const double* share(const double* host, size_t count) {
    if (host == nullptr) return nullptr;
    const double*& there = sums[{host, count}];
    if (there == nullptr) there = memory.copy(host, count);
    return there;
  }
};

DeviceChains::DeviceChains(Runtime& runtime, const HeadStream<float>& stream, const float* keys,
                           const float* sink_logits, std::span<const ChainOrder> orders, bool recalls)
    : runtime_(runtime),
      stream_(stream),
      orders_(orders),
      keys_(keys),
      sink_logits_(sink_logits),
      bits_(recalls || std::any_of(orders.begin(), orders.end(), lists_attended)),
      shared_(std::make_unique<OfStream>(runtime, stream)),
      records_(orders.size()) {
  for (size_t i = 0; i < orders.size(); ++i) {
    const ChainOrder& order = orders[i];
    memory_.push_back(std::make_unique<Memory>(runtime));
    if (lists_attended(order)) records_[i].attended.resize(size_t(order.memory.shape.heads));
    bodies_.push_back(body_of(order, *memory_.back()));
    const auto same = [&](const Group& g) {
      return g.programs.emulated == order.programs.emulated && g.programs.cuda == order.programs.cuda;
    };
    auto group = std::find_if(groups_.begin(), groups_.end(), same);
    if (group == groups_.end()) {
      groups_.emplace_back();
      group = groups_.end() - 1;
      group->programs = order.programs, group->policy_bytes = order.policy.size();
    }
    group->chains.push_back(i);
    group->shared = std::max(group->shared, ChainRoom::of(order.memory.shape, kChainThreads).bytes);
  }
  for (Group& g : groups_) {
    std::vector<std::byte> policies;
    for (const size_t i : g.chains)
      policies.insert(policies.end(), orders[i].policy.begin(), orders[i].policy.end());
    g.policies = DeviceArray<std::byte>(runtime, std::span<const std::byte>(policies));
    g.bodies = DeviceArray<std::byte>(runtime, g.chains.size() * sizeof(ChainBody));
  }
  open();
}
DeviceChains::~DeviceChains() = default;

ChainBody DeviceChains::body_of(const ChainOrder& order, Memory& m) {
  const CacheStorage<float>& host = order.memory;
  const HeadShape shape = host.shape;
  const size_t rows = rows_of(stream_, order), capacity = size_t(host.capacity), heads = size_t(shape.heads),
               tokens = size_t(stream_.tokens), own = size_t(host.own_rows), blocks = size_t(shape.blocks),
               at_once = order.needs.rows_from >= 0 ? size_t(ChainRoom::prompt_rows(shape.heads)) : 1;
  ChainBody b{};
  b.storage = host;
  b.storage.keys = keys_, b.storage.values = shared_->values;
  b.storage.token = m.take<int32_t>(capacity), b.storage.mark = m.take<uint8_t>(capacity);
  b.storage.score = m.like(host.score, capacity);
  b.storage.num = m.like(host.num, capacity), b.storage.den = m.like(host.den, capacity);
  b.storage.slot = m.like(host.slot, capacity), b.storage.coding = m.like(host.coding, capacity);
  b.storage.free_slots = m.like(host.free_slots, own);
  b.storage.own_keys = m.like(host.own_keys, own * blocks * size_t(shape.dim));
  b.storage.own_values = m.like(host.own_values, own * blocks * size_t(shape.v_dim));
  b.storage.copies = m.take<int32_t>(tokens), b.storage.left = m.take<int32_t>(tokens);
  b.storage.counts = m.take<int32_t>(Count::kCounts);
  b.state = {m.take<double>(order.state.size()), order.state.size()};
  const size_t all_rows = std::max(rows, tokens);  // a prompt's row may be looked at head by head
  b.scratch.rows = int32_t(rows);
  b.scratch.step = {
      m.take<float>(rows), m.take<float>(rows), m.take<double>(rows),
      order.by_head ? m.take<double>(heads * (order.needs.rows_from >= 0 ? all_rows : rows)) : nullptr,
      order.chooses ? m.take<uint8_t>(heads * rows) : nullptr};
  b.scratch.products = m.take<float>(heads * at_once * rows);
  b.scratch.weights_pitch = int32_t(weights_pitch(stream_, order));
  b.scratch.weights = m.take<float>(size_t(parts(order)) * heads * size_t(b.scratch.weights_pitch));
  b.scratch.recorded = keeps_recorded(order) ? m.take<float>(heads * rows) : nullptr;
  if (host.coding != nullptr)
    b.scratch.row = m.take<float>(size_t(shape.blocks) * size_t(shape.dim + shape.v_dim));
  b.scratch.of_token = order.split ? m.take<float>(tokens) : nullptr;
  m.end = m.take<ChainEnd>(1);

  const size_t prompt = size_t(stream_.prompt);
  ChainInput& in = b.input;
  in.query_row = shared_->query_row, in.scored = shared_->scored;
  in.sink_logits = sink_logits_ == nullptr ? nullptr : sink_logits_ + order.first_head;
  in.column_sums = shared_->share(order.column_sums, heads * prompt);
  in.column_max_sums = shared_->share(order.column_max_sums, prompt);
  in.future_sums = shared_->share(order.future_sums, heads * tokens);
  in.positions = shared_->positions, in.classes = shared_->classes;
  in.rope = {shared_->inv_freq, int32_t(stream_.inv_freq.size()), stream_.interleaved,
             stream_.attention_factor};
  in.rule = stream_.rule;
  if (order.moves) in.rotation = shared_->rotation;
  in.tokens = stream_.tokens, in.prompt = stream_.prompt;
  b.rules = order.rules, b.coder = order.coder, b.end = m.end, b.rows_from = order.needs.rows_from,
  b.bound = order.bound;
  b.streams_prompt = order.streams_prompt, b.observes = order.observes, b.reweights = order.reweights;
  b.split = order.split;
  b.output.prefix = order.prefix, b.output.set = order.set;
  b.output.words = int32_t(words_of(stream_)), b.output.bits_by_head = bit_heads(order) > 1;
  return b;
}

size_t DeviceChains::bytes(const HeadStream<float>& stream, const ChainOrder& order) {
  const size_t rows = rows_of(stream, order), heads = size_t(order.memory.shape.heads),
               tokens = size_t(stream.tokens);
  const size_t own = size_t(order.memory.own_rows) * size_t(order.memory.shape.blocks) *
                     size_t(order.memory.shape.dim + order.memory.shape.v_dim) * sizeof(float);
  const size_t of_rows = 48 + heads * (8 * sizeof(float) + 9);
  return rows * of_rows + own + order.state.size() * sizeof(double) + tokens * 16 +
         size_t(parts(order)) * heads * weights_pitch(stream, order) * sizeof(float) +
         (order.needs.rows_from >= 0 ? heads * tokens * sizeof(double) : 0);
}
size_t DeviceChains::row_bytes() const {
  size_t bytes = 0;
  for (const ChainOrder& o : orders_)
    bytes += size_t(o.memory.shape.heads) * sizeof(ChainRow) +
             (bits_ ? bit_heads(o) * words_of(stream_) * sizeof(uint32_t) : 0);
  return bytes;
}

// Prompts that are taken in one call.
void DeviceChains::open() {
  const auto reads = [](const ChainOrder& o) {
    return !o.streams_prompt && (o.needs.queries || o.needs.rows_from >= 0);
  };
  std::fill_n(std::back_inserter(shared_->rows), stream_.tokens, -1);
  runtime_.upload(shared_->scored, shared_->rows.data(), shared_->rows.size() * sizeof(int32_t));
  const auto trains = [](const ChainOrder& o) { return o.needs.future_queries; };
  const bool some_train = std::any_of(orders_.begin(), orders_.end(), trains);
  if (std::any_of(orders_.begin(), orders_.end(), reads))
    load_queries(0, some_train ? stream_.tokens : stream_.prompt, true);
  for (ChainBody& b : bodies_) {
    b.first = b.last = b.streams_prompt ? 0 : stream_.prompt;
    b.output.rows = 0;
  }
  launch(stream_.prompt - 1, stream_.prompt, true);
  const bool some =
      std::any_of(orders_.begin(), orders_.end(), [](const auto& o) { return o.streams_prompt; });
  next_ = some ? 0 : stream_.prompt;
}

// Queries of the tokens first .. end - 1 that have one, all of them or those that are scored.
void DeviceChains::load_queries(int32_t first, int32_t end, bool all) {
  OfStream& s = *shared_;
  std::vector<int32_t> tokens;
  for (int32_t t = first; t < end; ++t)
    if (stream_.query_row[size_t(t)] >= 0 && (all || s.rows[size_t(t)] >= 0)) tokens.push_back(t);
  std::vector<int32_t> row(size_t(stream_.tokens), 0);
  for (size_t r = 0; r < tokens.size(); ++r) row[size_t(tokens[r])] = int32_t(r);
  const std::vector<float> numbers = queries_of(stream_, tokens);
  s.query_head = int64_t(tokens.size()) * stream_.shape.dim;
  runtime_.upload(s.memory.reuse<float>(s.queries, numbers.size()), numbers.data(),
                  numbers.size() * sizeof(float));
  runtime_.upload(s.query_row, row.data(), row.size() * sizeof(int32_t));
}

void DeviceChains::advance(int32_t end, const Target& target) {
  OfStream& s = *shared_;
  const std::vector<int32_t>& rows = *target.rows;
  std::fill(s.rows.begin(), s.rows.end(), -1);
  for (size_t r = 0; r < rows.size(); ++r) s.rows[size_t(rows[r])] = int32_t(r);
  runtime_.upload(s.scored, s.rows.data(), s.rows.size() * sizeof(int32_t));
  const int64_t count = int64_t(rows.size()), heads = stream_.shape.heads;
  int32_t part = target.part;
  for (size_t i = 0; i < orders_.size(); ++i) {
    ChainOutput& out = bodies_[i].output;
    Memory& m = *memory_[i];
    const int64_t cell = (part * heads + orders_[i].first_head) * count;
    out.sums = {target.sums.top + cell, target.sums.z + cell, target.sums.tokens + cell,
                target.sums.squares + cell, target.sums.out + cell * target.width};
    out.part_cells = heads * count, out.rows = int32_t(count), out.width = target.width;
    out.cells = m.reuse<ChainRow>(m.cells, size_t(orders_[i].memory.shape.heads) * rows.size());
    out.attended =
        bits_ ? m.reuse<uint32_t>(m.bits, bit_heads(orders_[i]) * rows.size() * words_of(stream_)) : nullptr;
    part += parts(orders_[i]);
  }
  const bool all = std::any_of(orders_.begin(), orders_.end(), [](const auto& o) { return o.observes; });
  size_t noted = 1;
  for (const ChainOrder& o : orders_) noted += o.lists ? 12 * size_t(o.memory.capacity) : 0;
  const int32_t piece = int32_t(std::clamp<size_t>(kNoteBytes / noted, 1, size_t(kPiece)));
  for (int32_t last; next_ < end; next_ = last) {
    last = std::min(end, next_ + piece);
    if (next_ < stream_.prompt) last = std::min(last, stream_.prompt);
    load_queries(next_, last, all);
    for (ChainBody& b : bodies_) {
      b.first = b.streams_prompt ? next_ : std::max(next_, stream_.prompt);
      b.last = std::max(b.first, last);
    }
    launch(next_, last, false);
  }
  for (size_t i = 0; i < orders_.size(); ++i) {
    Memory& m = *memory_[i];
    m.of_cells.resize(size_t(orders_[i].memory.shape.heads) * rows.size());
    runtime_.download(m.of_cells.data(), m.cells.data(), m.of_cells.size() * sizeof(ChainRow));
  }
  const std::vector<ChainEnd> how = ends();
  for (size_t i = 0; i < orders_.size(); ++i)
    if (lists_attended(orders_[i]) && how[i].why == ChainEnd::done) list_attended(i);
}

// Steps of the tokens first .. end - 1, of those that have something to note.
void DeviceChains::launch(int32_t first, int32_t end, bool opens) {
  for (size_t i = 0; i < bodies_.size(); ++i) {
    ChainBody& b = bodies_[i];
    Memory& m = *memory_[i];
    const ChainOrder& order = orders_[i];
    const size_t steps = size_t(end - first), listed = order.lists ? steps * size_t(b.storage.capacity) : 0;
    b.opens = opens;
    b.input.queries = reinterpret_cast<const float*>(shared_->queries.data());
    if (b.input.queries != nullptr) b.input.queries += order.first_head * shared_->query_head;
    b.input.query_head = shared_->query_head;
    b.input.query_row = opens ? nullptr : shared_->query_row;
    b.notes = {first, m.reuse<ChainStep>(m.steps, steps), nullptr, nullptr, nullptr};
    if (listed == 0) continue;
    b.notes.tokens = m.reuse<int32_t>(m.tokens, listed);
    if (b.storage.num == nullptr) continue;
    b.notes.num = m.reuse<float>(m.num, listed), b.notes.den = m.reuse<float>(m.den, listed);
  }
  for (Group& g : groups_) {
    std::vector<ChainBody> bodies;
    for (const size_t i : g.chains) bodies.push_back(bodies_[i]);
    runtime_.upload(g.bodies.data(), bodies.data(), bodies.size() * sizeof(ChainBody));
    runtime_.run_chains(g.programs, {g.bodies.data(), g.policies.data(), g.policy_bytes,
                                     int64_t(bodies.size()), g.shared, nullptr});
  }
  take_notes(first, end);
}

void DeviceChains::take_notes(int32_t first, int32_t end) {
  const size_t steps = size_t(end - first);
  std::vector<std::vector<ChainStep>> noted(bodies_.size());
  for (size_t i = 0; i < bodies_.size(); ++i) {
    const ChainBody& b = bodies_[i];
    const bool took = b.opens ? !b.streams_prompt : b.first < b.last;
    noted[i].resize(took ? steps : 0);
    runtime_.download(noted[i].data(), b.notes.steps, noted[i].size() * sizeof(ChainStep));
  }
  const std::vector<ChainEnd> all = ends();
  for (size_t i = 0; i < bodies_.size(); ++i) {
    if (all[i].why != ChainEnd::done) continue;
    records_[i].steps.insert(records_[i].steps.end(), noted[i].begin(), noted[i].end());
    if (bodies_[i].notes.tokens != nullptr) list_rows(i, noted[i]);
  }
}

// Every S_t of these steps.
void DeviceChains::list_rows(size_t i, const std::vector<ChainStep>& noted) {
  const ChainNotes& notes = bodies_[i].notes;
  ChainRecord::Rows& rows = records_[i].rows;
  const size_t capacity = size_t(bodies_[i].storage.capacity);
  std::vector<int32_t> tokens(noted.size() * capacity);
  std::vector<float> num(notes.num == nullptr ? 0 : tokens.size()), den(num.size());
  runtime_.download(tokens.data(), notes.tokens, tokens.size() * sizeof(int32_t));
  runtime_.download(num.data(), notes.num, num.size() * sizeof(float));
  runtime_.download(den.data(), notes.den, den.size() * sizeof(float));
  runtime_.wait();
  for (size_t k = 0; k < noted.size(); ++k) {
    const auto append = [&](auto& to, const auto& from) {
      const auto begin = from.begin() + int64_t(from.empty() ? 0 : k * capacity);
      to.insert(to.end(), begin, begin + (from.empty() ? 0 : noted[k].kept.rows));
    };
    append(rows.tokens.flat, tokens), append(rows.num, num), append(rows.den, den);
    rows.tokens.off.push_back(int64_t(rows.tokens.flat.size()));
  }
}

const std::vector<ChainRow>& DeviceChains::cells(size_t i) const { return memory_[i]->of_cells; }

RecallLane DeviceChains::recall(size_t i) const {
  const ChainOutput& out = bodies_[i].output;
  RecallLane lane{};
  lane.part.first_head = orders_[i].first_head, lane.part.heads = orders_[i].memory.shape.heads;
  lane.later_from = kNoRun, lane.by_head = orders_[i].heads_differ ? 1 : 0;
  lane.bits = out.attended, lane.words = out.words;
  lane.bits_head = orders_[i].heads_differ ? int64_t(out.rows) * out.words : 0;
  return lane;
}

// Of the rows of this advance(), the tokens that each head attends to.
void DeviceChains::list_attended(size_t i) {
  const ChainOutput& out = bodies_[i].output;
  std::vector<TokenLists>& of_heads = records_[i].attended;
  const size_t words = size_t(out.words), rows = size_t(out.rows);
  std::vector<uint32_t> bits(bit_heads(orders_[i]) * rows * words);
  runtime_.download(bits.data(), out.attended, bits.size() * sizeof(uint32_t));
  runtime_.wait();
  for (size_t h = 0; h < of_heads.size(); ++h)
    for (size_t r = 0; r < rows; ++r) {
      const uint32_t* const row = bits.data() + ((out.bits_by_head ? h : 0) * rows + r) * words;
      for (int32_t t = 0; t < stream_.tokens; ++t)
        if ((row[t / 32] >> t % 32 & 1u) != 0) of_heads[h].flat.push_back(t);
      of_heads[h].off.push_back(int64_t(of_heads[h].flat.size()));
    }
}

std::vector<ChainEnd> DeviceChains::ends() const {
  std::vector<ChainEnd> all(memory_.size());
  for (size_t i = 0; i < all.size(); ++i) runtime_.download(&all[i], memory_[i]->end, sizeof(ChainEnd));
  runtime_.wait();
  return all;
}

std::vector<ChainRecord> DeviceChains::finish() {
  const std::vector<ChainEnd> all = ends();
  for (const Group& g : groups_)
    for (size_t k = 0; k < g.chains.size(); ++k) {
      std::vector<std::byte>& policy = records_[g.chains[k]].policy;
      policy.resize(g.policy_bytes);
      g.policies.download(policy, k * g.policy_bytes);
    }
  for (size_t i = 0; i < bodies_.size(); ++i) {
    records_[i].end = all[i];
    const CacheStorage<float>&from = bodies_[i].storage, &to = orders_[i].memory;
    const auto fetch = [&](auto* host, const auto* device, size_t count) {
      if (host != nullptr) runtime_.download(host, device, count * sizeof(*host));
    };
    const size_t capacity = size_t(to.capacity), own = size_t(to.own_rows * to.shape.blocks);
    fetch(to.token, from.token, capacity), fetch(to.mark, from.mark, capacity);
    fetch(to.score, from.score, capacity), fetch(to.slot, from.slot, capacity);
    fetch(to.num, from.num, capacity), fetch(to.den, from.den, capacity);
    fetch(to.coding, from.coding, capacity);
    fetch(to.free_slots, from.free_slots, size_t(to.own_rows));
    fetch(to.own_keys, from.own_keys, own * size_t(to.shape.dim));
    fetch(to.own_values, from.own_values, own * size_t(to.shape.v_dim));
    fetch(to.copies, from.copies, size_t(stream_.tokens)), fetch(to.left, from.left, size_t(stream_.tokens));
    fetch(to.counts, from.counts, Count::kCounts);
    if (!orders_[i].state.empty())
      runtime_.download(orders_[i].state.data(), bodies_[i].state.data(), orders_[i].state.size_bytes());
    runtime_.wait();  // what copies need in between is that of one chain
  }
  return std::move(records_);
}

}  // namespace kvreplay
