#include "device/policy_batch.hpp"

#include <algorithm>

#include "device/query_rows.hpp"

namespace kvreplay {
namespace {

constexpr size_t kNoteBytes = size_t{256} << 20;  // size of the lists of one launch

}  // namespace

struct PolicyBatch::Group {
  DevicePrograms programs;
  std::vector<size_t> members;  // indices in the batch
  DeviceArray<std::byte> policies, tasks;
  size_t policy_bytes = 0, shared = 0;
};

PolicyBatch::PolicyBatch(Runtime& runtime, const HeadStream<float>& stream, const float* keys, const float* sink_logits,
                         std::span<const DevicePolicy> policies, bool recalls, int32_t piece)
    : runtime_(runtime),
      stream_(stream),
      policies_(policies),
      piece_(piece),
      bits_(recalls || std::any_of(policies.begin(), policies.end(), lists_attended)),
      shared_(std::make_unique<PolicyStream>(runtime, stream)),
      records_(policies.size()) {
  for (size_t i = 0; i < policies.size(); ++i) {
    const DevicePolicy& policy = policies[i];
    memory_.push_back(std::make_unique<PolicyMemory>(runtime));
    if (lists_attended(policy)) records_[i].attended.resize(size_t(policy.memory.shape.heads));
    tasks_.push_back(make_task(stream, policy, keys, sink_logits, *shared_, *memory_.back()));
    const auto same = [&](const Group& g) { return g.programs == policy.programs; };
    auto group = std::find_if(groups_.begin(), groups_.end(), same);
    if (group == groups_.end()) {
      groups_.emplace_back();
      group = groups_.end() - 1;
      group->programs = policy.programs, group->policy_bytes = policy.policy.size();
    }
    group->members.push_back(i);
    group->shared = std::max(group->shared, PolicyRoom::of(policy.memory.shape, kPolicyThreads).bytes);
  }
  for (Group& g : groups_) {
    std::vector<std::byte> bytes;
    for (const size_t i : g.members) bytes.insert(bytes.end(), policies[i].policy.begin(), policies[i].policy.end());
    g.policies = DeviceArray<std::byte>(runtime, std::span<const std::byte>(bytes));
    g.tasks = DeviceArray<std::byte>(runtime, g.members.size() * sizeof(PolicyTask));
  }
  open();
}
PolicyBatch::~PolicyBatch() = default;

size_t PolicyBatch::row_bytes() const {
  size_t bytes = 0;
  for (const DevicePolicy& p : policies_)
    bytes += size_t(p.memory.shape.heads) * sizeof(RowResult) +
             (bits_ ? bit_heads(p) * words_of(stream_) * sizeof(uint32_t) : 0);
  return bytes;
}

// Takes the prompts that arrive in one call.
void PolicyBatch::open() {
  const auto reads = [](const DevicePolicy& p) {
    return !p.streams_prompt && (p.needs.queries || p.needs.rows_from >= 0);
  };
  std::fill_n(std::back_inserter(shared_->rows), stream_.tokens, -1);
  runtime_.upload(shared_->scored, shared_->rows.data(), shared_->rows.size() * sizeof(int32_t));
  const auto trains = [](const DevicePolicy& p) { return p.needs.future_queries; };
  const bool some_train = std::any_of(policies_.begin(), policies_.end(), trains);
  if (std::any_of(policies_.begin(), policies_.end(), reads))
    load_queries(0, some_train ? stream_.tokens : stream_.prompt, true);
  for (PolicyTask& b : tasks_) {
    b.first = b.last = b.streams_prompt ? 0 : stream_.prompt;
    b.output.rows = 0;
  }
  launch(stream_.prompt - 1, stream_.prompt, true);
  const bool some = std::any_of(policies_.begin(), policies_.end(), [](const auto& p) { return p.streams_prompt; });
  next_ = some ? 0 : stream_.prompt;
}

// Loads the queries of tokens first .. end - 1: all that exist, or those of scored tokens.
void PolicyBatch::load_queries(int32_t first, int32_t end, bool all) {
  PolicyStream& s = *shared_;
  std::vector<int32_t> tokens;
  for (int32_t t = first; t < end; ++t)
    if (stream_.query_row[size_t(t)] >= 0 && (all || s.rows[size_t(t)] >= 0)) tokens.push_back(t);
  std::vector<int32_t> row(size_t(stream_.tokens), 0);
  for (size_t r = 0; r < tokens.size(); ++r) row[size_t(tokens[r])] = int32_t(r);
  const std::vector<float> numbers = queries_of(stream_, tokens);
  s.query_head = int64_t(tokens.size()) * stream_.shape.dim;
  runtime_.upload(s.memory.reuse<float>(s.queries, numbers.size()), numbers.data(), numbers.size() * sizeof(float));
  runtime_.upload(s.query_row, row.data(), row.size() * sizeof(int32_t));
}

void PolicyBatch::advance(int32_t end, const Target& target) {
  PolicyStream& s = *shared_;
  const std::vector<int32_t>& rows = *target.rows;
  std::fill(s.rows.begin(), s.rows.end(), -1);
  for (size_t r = 0; r < rows.size(); ++r) s.rows[size_t(rows[r])] = int32_t(r);
  runtime_.upload(s.scored, s.rows.data(), s.rows.size() * sizeof(int32_t));
  const int64_t count = int64_t(rows.size()), heads = stream_.shape.heads;
  int32_t part = target.part;
  RowResult* result = target.results;
  for (size_t i = 0; i < policies_.size(); ++i) {
    PolicyOutput& out = tasks_[i].output;
    PolicyMemory& m = *memory_[i];
    const int64_t cell = (part * heads + policies_[i].first_head) * count;
    out.sums = {target.sums.top + cell, target.sums.z + cell, target.sums.tokens + cell, target.sums.squares + cell,
                target.sums.out + cell * target.width};
    out.part_cells = heads * count, out.rows = int32_t(count), out.width = target.width;
    out.results = result;
    result += size_t(policies_[i].memory.shape.heads) * rows.size();
    out.attended =
        bits_ ? m.reuse<uint32_t>(m.bits, bit_heads(policies_[i]) * rows.size() * words_of(stream_)) : nullptr;
    part += parts_of(policies_[i]);
  }
  const bool all =
      std::any_of(policies_.begin(), policies_.end(), [](const auto& p) { return p.observes || p.sees_queries; });
  size_t noted = 1;
  for (const DevicePolicy& p : policies_) noted += p.lists ? 12 * size_t(p.memory.capacity) : 0;
  const int32_t piece = int32_t(std::clamp<size_t>(kNoteBytes / noted, 1, size_t(piece_)));
  for (int32_t last; next_ < end; next_ = last) {
    last = std::min(end, next_ + piece);
    if (next_ < stream_.prompt) last = std::min(last, stream_.prompt);
    load_queries(next_, last, all);
    for (PolicyTask& b : tasks_) {
      b.first = b.streams_prompt ? next_ : std::max(next_, stream_.prompt);
      b.last = std::max(b.first, last);
    }
    launch(next_, last, false);
  }
  if (std::none_of(policies_.begin(), policies_.end(), lists_attended)) return;
  const std::vector<PolicyEnd> all_ends = ends();
  for (size_t i = 0; i < policies_.size(); ++i)
    if (lists_attended(policies_[i]) && all_ends[i].why == PolicyEnd::done) list_attended(i);
}

// Runs the steps of tokens first .. end - 1 for the policies that take them.
void PolicyBatch::launch(int32_t first, int32_t end, bool opens) {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    PolicyTask& b = tasks_[i];
    PolicyMemory& m = *memory_[i];
    const DevicePolicy& policy = policies_[i];
    const size_t steps = size_t(end - first), listed = policy.lists ? steps * size_t(b.storage.capacity) : 0;
    b.opens = opens;
    b.input.queries = reinterpret_cast<const float*>(shared_->queries.data());
    if (b.input.queries != nullptr) b.input.queries += policy.first_head * shared_->query_head;
    b.input.query_head = shared_->query_head;
    b.input.query_row = opens ? nullptr : shared_->query_row;
    b.notes = {first, m.reuse<StepRecord>(m.steps, steps), nullptr, nullptr, nullptr};
    if (listed == 0) continue;
    b.notes.tokens = m.reuse<int32_t>(m.tokens, listed);
    if (b.storage.num == nullptr) continue;
    b.notes.num = m.reuse<float>(m.num, listed), b.notes.den = m.reuse<float>(m.den, listed);
  }
  for (Group& g : groups_) {
    std::vector<PolicyTask> tasks;
    for (const size_t i : g.members) tasks.push_back(tasks_[i]);
    runtime_.upload(g.tasks.data(), tasks.data(), tasks.size() * sizeof(PolicyTask));
    runtime_.run_policies(
        g.programs, {g.tasks.data(), g.policies.data(), g.policy_bytes, int64_t(tasks.size()), g.shared, nullptr});
  }
  take_notes(first, end);
}

void PolicyBatch::take_notes(int32_t first, int32_t end) {
  const size_t steps = size_t(end - first);
  std::vector<std::vector<StepRecord>> noted(tasks_.size());
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const PolicyTask& b = tasks_[i];
    const bool took = b.opens ? !b.streams_prompt : b.first < b.last;
    noted[i].resize(took ? steps : 0);
    runtime_.download(noted[i].data(), b.notes.steps, noted[i].size() * sizeof(StepRecord));
  }
  const std::vector<PolicyEnd> all = ends();
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (all[i].why != PolicyEnd::done) continue;
    records_[i].steps.insert(records_[i].steps.end(), noted[i].begin(), noted[i].end());
    if (tasks_[i].notes.tokens != nullptr) list_rows(i, noted[i]);
  }
}

// Lists every S_t of these steps.
void PolicyBatch::list_rows(size_t i, const std::vector<StepRecord>& noted) {
  const PolicyNotes& notes = tasks_[i].notes;
  DevicePolicyRecord::Rows& rows = records_[i].rows;
  const size_t capacity = size_t(tasks_[i].storage.capacity);
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

RecallCache PolicyBatch::recall(size_t i) const {
  const PolicyOutput& out = tasks_[i].output;
  RecallCache cache{};
  cache.part.first_head = policies_[i].first_head, cache.part.heads = policies_[i].memory.shape.heads;
  cache.later_from = kNoRun, cache.by_head = policies_[i].heads_differ ? 1 : 0;
  cache.bits = out.attended, cache.words = out.words;
  cache.bits_head = policies_[i].heads_differ ? int64_t(out.rows) * out.words : 0;
  return cache;
}

// Lists the tokens that each head attends to in the rows of this advance().
void PolicyBatch::list_attended(size_t i) {
  const PolicyOutput& out = tasks_[i].output;
  std::vector<TokenLists>& of_heads = records_[i].attended;
  const size_t words = size_t(out.words), rows = size_t(out.rows);
  std::vector<uint32_t> bits(bit_heads(policies_[i]) * rows * words);
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

std::vector<PolicyEnd> PolicyBatch::ends() const {
  std::vector<PolicyEnd> all(memory_.size());
  for (size_t i = 0; i < all.size(); ++i) runtime_.download(&all[i], memory_[i]->end, sizeof(PolicyEnd));
  runtime_.wait();
  return all;
}

std::vector<DevicePolicyRecord> PolicyBatch::finish() {
  const std::vector<PolicyEnd> all = ends();
  for (const Group& g : groups_)
    for (size_t k = 0; k < g.members.size(); ++k) {
      std::vector<std::byte>& policy = records_[g.members[k]].policy;
      policy.resize(g.policy_bytes);
      g.policies.download(policy, k * g.policy_bytes);
    }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    records_[i].end = all[i];
    fetch_policy(runtime_, stream_, tasks_[i], policies_[i]);
    runtime_.wait();  // buffers for copies are those of one policy
  }
  return std::move(records_);
}

}  // namespace kvreplay
