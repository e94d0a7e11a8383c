#include "backend/device_chains.hpp"

#include <algorithm>

#include "backend/query_rows.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kPiece = 4096;                  // tokens of a launch
constexpr size_t kNoteBytes = size_t{256} << 20;  // of the lists of a launch

}  // namespace

struct DeviceChains::Group {
  ChainPrograms programs;
  std::vector<size_t> chains;  // numbers of them
  DeviceArray<std::byte> policies, bodies;
  size_t policy_bytes = 0, shared = 0;
};

DeviceChains::DeviceChains(Runtime& runtime, const HeadStream<float>& stream, const float* keys,
                           const float* sink_logits, std::span<const ChainOrder> orders, bool recalls)
    : runtime_(runtime),
      stream_(stream),
      orders_(orders),
      bits_(recalls || std::any_of(orders.begin(), orders.end(), lists_attended)),
      shared_(std::make_unique<ChainStream>(runtime, stream)),
      records_(orders.size()) {
  for (size_t i = 0; i < orders.size(); ++i) {
    const ChainOrder& order = orders[i];
    memory_.push_back(std::make_unique<ChainMemory>(runtime));
    if (lists_attended(order)) records_[i].attended.resize(size_t(order.memory.shape.heads));
    bodies_.push_back(make_chain(stream, order, keys, sink_logits, *shared_, *memory_.back()));
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
  ChainStream& s = *shared_;
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
  ChainStream& s = *shared_;
  const std::vector<int32_t>& rows = *target.rows;
  std::fill(s.rows.begin(), s.rows.end(), -1);
  for (size_t r = 0; r < rows.size(); ++r) s.rows[size_t(rows[r])] = int32_t(r);
  runtime_.upload(s.scored, s.rows.data(), s.rows.size() * sizeof(int32_t));
  const int64_t count = int64_t(rows.size()), heads = stream_.shape.heads;
  int32_t part = target.part;
  for (size_t i = 0; i < orders_.size(); ++i) {
    ChainOutput& out = bodies_[i].output;
    ChainMemory& m = *memory_[i];
    const int64_t cell = (part * heads + orders_[i].first_head) * count;
    out.sums = {target.sums.top + cell, target.sums.z + cell, target.sums.tokens + cell,
                target.sums.squares + cell, target.sums.out + cell * target.width};
    out.part_cells = heads * count, out.rows = int32_t(count), out.width = target.width;
    out.cells = m.reuse<ChainRow>(m.cells, size_t(orders_[i].memory.shape.heads) * rows.size());
    out.attended =
        bits_ ? m.reuse<uint32_t>(m.bits, bit_heads(orders_[i]) * rows.size() * words_of(stream_)) : nullptr;
    part += parts_of(orders_[i]);
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
    ChainMemory& m = *memory_[i];
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
    ChainMemory& m = *memory_[i];
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
    fetch_chain(runtime_, stream_, bodies_[i], orders_[i]);
    runtime_.wait();  // what copies need in between is that of one chain
  }
  return std::move(records_);
}

}  // namespace kvreplay
