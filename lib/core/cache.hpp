#pragma once
#include <cassert>
#include <concepts>
#include <cstdint>
#include <span>

#include "core/team.hpp"
#include "core/token.hpp"

// A cache is a list of rows (key, value, num, den). Every method's output is
//   o(q) = sum_i num_i exp(l_i) v_i / sum_i den_i exp(l_i),   l_i = scale <q, key_i>   (convention C7).
// Rows stay in the order in which they were pushed. A verbatim row holds an unmodified token of the trace: it refers to
// the token instead of copying it, and its logit can be looked up. A row that was written (merged, re-estimated,
// quantised) is stored here; it may still represent one token. A row with num = 0 counts in the denominator only and
// stores no value. A row with num = den = 0 is a key that the policy remembers.

namespace kvreplay {

// Storage that a policy asks for. Allocated before the first token.
struct Layout {
  int64_t state_doubles = 0;  // size of the policy's `state`
  bool scores = false;        // one double per row, removed with the row
  bool weights = false;       // num and den other than 1
  bool split = false;         // rows may count in the numerator or the denominator alone
  int32_t own_rows = 0;       // rows that the policy writes
  int64_t extra_rows = 0;     // rows beyond one per token, for caches that hold a token several times
  bool coded = false;         // a row format writes rows
};

// Where a row format (formats/) coded the key and the value of a row. A row that a policy writes is exact again.
struct Coding {
  static constexpr int32_t kExact = -1;
  int32_t key = kExact, value = kExact;
  bool key_exact() const { return key == kExact; }
  bool value_exact() const { return value == kExact; }
};

// Weights of a row in the numerator and in the denominator.
struct RowWeights {
  double num, den;
};

constexpr int32_t kSynthetic = -1;
constexpr int32_t kEvicted = -1;
// How a query-time method uses a row. A weighed row counts in the denominator, but its value is not read. An estimated
// row counts in both sums by the logit that the method gives it, and nothing of it is read. A scanned row counts in
// none: only its part of an index is read.
constexpr uint8_t kUnread = 0, kRead = 1, kWeighed = 2, kEstimated = 4, kScanned = 8;
constexpr bool counts_unread(uint8_t how) { return how == kWeighed || how == kEstimated; }
inline bool any_counts_unread(std::span<const uint8_t> how) {
  uint8_t any = 0;
  for (const uint8_t flags : how) any |= flags;
  return (any & (kWeighed | kEstimated)) != 0;
}
constexpr bool counts(uint8_t how) { return how != kUnread && how != kScanned; }

// A cut of whole pages that kv heads of a layer make together: the tokens that stay (the first `sinks`, the last
// `recent` rows, and the first `kept_prompt` beside the budget), and the number of full pages that are left.
struct PageCut {
  bool due = false;
  int32_t sinks = 0, recent = 0, kept_prompt = 0, left = 0;
};
// Where the heads add the scores of their pages. Each adds, and none evicts.
struct PageBoard {
  double* sums = nullptr;  // [pages] by number; null: the cache decides alone
  PageCut* cut = nullptr;
};

template <class Real>
struct CacheStorage {
  const Real *keys = nullptr, *values = nullptr;  // the trace's; policies never get them
  // Keys and values as a row format reads them back, where caches share them; null: coded rows are written here.
  const Real *coded_keys = nullptr, *coded_values = nullptr;
  int32_t* token = nullptr;             // [capacity] token index, or kSynthetic
  double* score = nullptr;              // [capacity] or null
  Real *num = nullptr, *den = nullptr;  // [capacity] or null: all 1
  uint8_t* mark = nullptr;              // [capacity] scratch for selections
  int32_t* slot = nullptr;              // [capacity] index of the row's numbers stored here, or negative; null: none
                                        // are stored
  Coding* coding = nullptr;             // [capacity] or null: no row format
  int32_t* free_slots = nullptr;        // [own_rows]
  Real *own_keys = nullptr, *own_values = nullptr;
  int32_t* copies = nullptr;   // [tokens] number of rows that hold a token; kEvicted for ever once it falls to 0
  int32_t* evicted = nullptr;  // [tokens] or null: evicted tokens in the order of eviction
  int32_t* counts = nullptr;   // [kCounts], see Count
  int32_t capacity = 0, own_rows = 0;
  int64_t key_block = 0, value_block = 0;  // elements from one kv head of the trace to the next
  HeadShape shape{};
  PageBoard board = {};
  // Scores of a row: one for each policy that decides, `capacity` apart; `score` is that of policy score_set.
  int32_t score_sets = 1, score_set = 0;
  // Rows stored here have this number of kv heads, of which this cache begins with own_block.
  int32_t own_block = 0, own_blocks = 1;

  // One kv head of a cache that spans a layer: its keys, values and scores, and the rows of all.
  CacheStorage block(int32_t b) const {
    const auto at = [b](auto* base, int64_t offset) { return base == nullptr ? nullptr : base + b * offset; };
    CacheStorage one = score_sets > 1 ? scores_of(b) : *this;
    one.keys = at(keys, key_block), one.values = at(values, value_block);
    one.coded_keys = at(coded_keys, key_block), one.coded_values = at(coded_values, value_block);
    one.own_block = b;
    one.shape = shape.one_block();
    return one;
  }
  // The rows of all with the scores of policy k.
  CacheStorage scores_of(int32_t k) const {
    CacheStorage one = *this;
    if (score != nullptr) one.score += int64_t(k - score_set) * capacity;
    one.score_set = k;
    return one;
  }
};

struct Count {
  enum : int { rows, free_slots, evicted, returned, failure, failed_at, coded_keys, coded_values, written, kCounts };
};

template <class Real>
class BasicCache {
 public:
  using real = Real;
  BasicCache() = default;
  explicit BasicCache(const CacheStorage<Real>& s) : s_(s) {}

  int32_t size() const { return s_.counts[Count::rows]; }
  int32_t capacity() const { return s_.capacity; }
  HeadShape shape() const { return s_.shape; }
  int32_t token(int32_t row) const { return s_.token[row]; }
  // Whether the row refers to a token and stores no numbers here.
  bool refers(int32_t row) const { return s_.slot == nullptr || s_.slot[row] < 0; }
  // Whether the row's numbers are those recorded for its token.
  bool verbatim(int32_t row) const { return refers(row) && coding(row).key_exact() && coding(row).value_exact(); }
  bool verbatim_key(int32_t row) const { return refers(row) && coding(row).key_exact(); }
  // Whether the row's key (or value) is what a row format reads back for its token; all caches read the same one.
  bool shares_coded_key(int32_t row) const { return refers(row) && !coding(row).key_exact(); }
  bool shares_coded_value(int32_t row) const { return refers(row) && !coding(row).value_exact(); }
  bool has_shared_codes() const { return s_.coded_keys != nullptr; }
  Real num(int32_t row) const { return s_.num != nullptr ? s_.num[row] : Real(1); }
  Real den(int32_t row) const { return s_.den != nullptr ? s_.den[row] : Real(1); }
  bool weighted() const { return s_.num != nullptr; }
  // Whether any row may differ from what was recorded.
  bool has_changed_rows() const { return s_.own_rows > 0 || s_.coding != nullptr; }
  double score(int32_t row) const { return s_.score[row]; }
  double& score(int32_t row) { return s_.score[row]; }
  uint8_t& mark(int32_t row) { return s_.mark[row]; }
  Coding coding(int32_t row) const { return s_.coding != nullptr ? s_.coding[row] : Coding{}; }
  int32_t coded_keys() const { return s_.counts[Count::coded_keys]; }
  int32_t coded_values() const { return s_.counts[Count::coded_values]; }
  // Number of rows that a policy has written so far.
  int32_t written() const { return s_.counts[Count::written]; }
  int32_t evictions() const { return s_.counts[Count::evicted]; }
  // Tokens evicted after the first `since` evictions, where the storage lists them.
  std::span<const int32_t> evicted_since(int32_t since) const {
    return {s_.evicted + since, size_t(evictions() - since)};
  }
  PageBoard page_board() const { return s_.board; }
  BasicCache block(int32_t b) const { return BasicCache(s_.block(b)); }
  BasicCache scores_of(int32_t k) const { return BasicCache(s_.scores_of(k)); }
  BasicCache with_board(PageBoard board) const {
    BasicCache shown = *this;
    shown.s_.board = board;
    return shown;
  }
  int32_t returned_tokens() const { return s_.counts[Count::returned]; }
  std::span<const int32_t> tokens() const { return {s_.token, size_t(size())}; }
  // Weights of the rows; empty: all 1.
  std::span<const Real> nums() const { return {s_.num, weighted() ? size_t(size()) : 0}; }
  std::span<const Real> dens() const { return {s_.den, weighted() ? size_t(size()) : 0}; }
  // Key and value of one kv head; `block` is 0 unless the cache spans a layer.
  std::span<const Real> key(int32_t row, int32_t block = 0) const {
    const Real* const shared = has_shared_codes() && !coding(row).key_exact() ? s_.coded_keys : s_.keys;
    return refers(row) ? at(shared + block * s_.key_block, s_.token[row], s_.shape.dim)
                       : at(s_.own_keys, own_row(row, block), s_.shape.dim);
  }
  std::span<const Real> value(int32_t row, int32_t block = 0) const {
    const Real* const shared = has_shared_codes() && !coding(row).value_exact() ? s_.coded_values : s_.values;
    return refers(row) ? at(shared + block * s_.value_block, s_.token[row], s_.shape.v_dim)
                       : at(s_.own_values, own_row(row, block), s_.shape.v_dim);
  }

  // Appends a token; its score starts at 0.
  void push(const Token<Real>& token, Real num = 1, Real den = 1) { append_row(token.index, num, den); }
  // Appends tokens first .. first + count - 1, each once.
  template <Team T>
  void push_run(const T& team, int32_t first, int32_t count) {
    const int32_t row = size();
    assert(row + count <= s_.capacity);
    const int32_t returned = team.count(count, [&](int32_t i) { return s_.copies[first + i] == kEvicted; });
    team.each(count, [&](int32_t i) {
      place(row + i, first + i, 1, 1, -1);
      if (s_.copies[first + i] != kEvicted) s_.copies[first + i] += 1;
    });
    s_.counts[Count::rows] = row + count, s_.counts[Count::returned] += returned;
  }
  // Appends a row that is no token; key(c) and value(c) return its numbers and may read the cache.
  template <Team T, class K, class V>
  void push_own(const T& team, K key, V value, Real num, Real den) {
    const int32_t slot = take_slot();
    write(team, slot, key, value);
    append_row(kSynthetic, num, den, slot);
    count_written();
  }
  // Stores a row's numbers here instead of referring to the trace; the row keeps its token. key(block, c) and
  // value(block, c) may read the row as it was.
  template <Team T, class K, class V>
  void rewrite(const T& team, int32_t row, K key, V value) {
    recode(team, row, key, value);
    count_written();
  }
  // Rewrites a row for a row format, which records with set_coding() what it has done.
  template <Team T, class K, class V>
  void recode(const T& team, int32_t row, K key, V value) {
    const int32_t slot = refers(row) ? take_slot() : s_.slot[row];
    for (int32_t b = 0; b < s_.shape.blocks; ++b)
      write(
          team, slot * s_.shape.blocks + b, [&](int32_t c) { return key(b, c); },
          [&](int32_t c) { return value(b, c); });
    s_.slot[row] = slot, forget_coding(row);
  }
  // For a row format, after recode().
  void set_coding(int32_t row, Coding coding) {
    forget_coding(row);
    s_.coding[row] = coding;
    count_coding(row, 1);
  }
  // Puts a token in place of what the row held.
  void replace(int32_t row, const Token<Real>& token, Real num, Real den) {
    if (s_.token[row] != token.index) release(row);
    else s_.copies[token.index] -= 1, forget_coding(row);
    hold(row, token.index, num, den, -1);
  }
  // Removes one row; the later ones move down.
  template <Team T>
  void drop(const T& team, int32_t row) {
    assert(row >= 0 && row < size());
    const int32_t n = size();
    release(row), s_.counts[Count::rows] = n - 1;
    team.close_gap(s_.token, row, n);
    for (int32_t k = 0; k < s_.score_sets && s_.score != nullptr; ++k) team.close_gap(scores(k), row, n);
    if (s_.num != nullptr) {
      team.close_gap(s_.num, row, n);
      team.close_gap(s_.den, row, n);
    }
    if (s_.slot != nullptr) team.close_gap(s_.slot, row, n);
    if (s_.coding != nullptr) team.close_gap(s_.coding, row, n);
  }
  // Removes every row for which stays(row) is false.
  template <Team T, class F>
  void retain(const T& team, F stays) {
    const int32_t n = size();
    for (int32_t i = 0; i < n; ++i)
      if (!stays(i)) release(i);
    compact_more_scores(n, stays);
    const int32_t left = team.compact(
        n, stays, [&](int32_t from) { return row_at(from); },
        [&](int32_t to, const Row& row) {
          if (row.from != to) put_row(to, row);
        });
    s_.counts[Count::rows] = left;
  }
  void weigh(int32_t row, double num, double den) {
    assert(s_.num != nullptr);
    s_.num[row] = Real(num), s_.den[row] = Real(den);
  }
  // Sets the weights of rows first .. first + count - 1 to weights(row), a RowWeights.
  template <Team T, class W>
  void weigh_rows(const T& team, int32_t first, int32_t count, W weights) {
    assert(s_.num != nullptr);
    team.each(count, [&](int32_t i) {
      const RowWeights w = weights(first + i);
      s_.num[first + i] = Real(w.num), s_.den[first + i] = Real(w.den);
    });
  }
  // Records that the method cannot go on (its run is recorded as failed). `code` is the policy's, > 0.
  void fail(int32_t code, int32_t at) {
    if (s_.counts[Count::failure] == 0) s_.counts[Count::failure] = code, s_.counts[Count::failed_at] = at;
  }
  int32_t failure() const { return s_.counts[Count::failure]; }
  int32_t failed_at() const { return s_.counts[Count::failed_at]; }
  template <Team T>
  void clear(const T& team) {
    for (int i = 0; i < Count::kCounts; ++i) s_.counts[i] = 0;
    s_.counts[Count::free_slots] = s_.own_rows;
    team.each(s_.own_rows, [&](int32_t i) { s_.free_slots[i] = i; });
  }

 private:
  // Scores of the k-th policy.
  double* scores(int32_t k) const { return s_.score + int64_t(k - s_.score_set) * s_.capacity; }
  int32_t own_row(int32_t row, int32_t block) const { return s_.slot[row] * s_.own_blocks + s_.own_block + block; }
  // The scores of all policies but this cache's own; call before rows are moved.
  template <class F>
  void compact_more_scores(int32_t n, F stays) {
    for (int32_t k = 0; k < s_.score_sets && s_.score != nullptr && s_.score_sets > 1; ++k) {
      if (k == s_.score_set) continue;
      int32_t to = 0;
      for (int32_t i = 0; i < n; ++i)
        if (stays(i)) scores(k)[to++] = scores(k)[i];
    }
  }
  static std::span<const Real> at(const Real* base, int32_t i, int32_t width) {
    return {base + int64_t(i) * width, size_t(width)};
  }
  int32_t take_slot() {
    assert(s_.counts[Count::free_slots] > 0);
    const int32_t slot = s_.free_slots[s_.counts[Count::free_slots] - 1];
    s_.counts[Count::free_slots] -= 1;
    return slot;
  }
  template <Team T, class K, class V>
  void write(const T& team, int32_t slot, K key, V value) {
    team.each(s_.shape.dim, [&](int32_t c) { s_.own_keys[int64_t(slot) * s_.shape.dim + c] = key(c); });
    team.each(s_.shape.v_dim, [&](int32_t c) { s_.own_values[int64_t(slot) * s_.shape.v_dim + c] = value(c); });
  }
  void count_written() { s_.counts[Count::written] += 1; }
  void place(int32_t row, int32_t token, Real num, Real den, int32_t slot) {
    s_.token[row] = token;
    for (int32_t k = 0; k < s_.score_sets && s_.score != nullptr; ++k) scores(k)[row] = 0;
    if (s_.num != nullptr) s_.num[row] = num, s_.den[row] = den;
    if (s_.slot != nullptr) s_.slot[row] = slot;
    if (s_.coding != nullptr) s_.coding[row] = {};
  }
  void hold(int32_t row, int32_t token, Real num, Real den, int32_t slot) {
    place(row, token, num, den, slot);
    if (token >= 0 && s_.copies[token] == kEvicted) s_.counts[Count::returned] += 1;
    else if (token >= 0) s_.copies[token] += 1;
  }
  void append_row(int32_t token, Real num, Real den, int32_t slot = -1) {
    const int32_t row = size();
    assert(row < s_.capacity);
    hold(row, token, num, den, slot), s_.counts[Count::rows] = row + 1;
  }
  void count_coding(int32_t row, int32_t change) {
    if (!s_.coding[row].key_exact()) s_.counts[Count::coded_keys] += change;
    if (!s_.coding[row].value_exact()) s_.counts[Count::coded_values] += change;
  }
  void forget_coding(int32_t row) {
    if (s_.coding == nullptr) return;
    count_coding(row, -1);
    s_.coding[row] = {};
  }
  // Releases a row; the caller updates the number of rows and moves the later ones.
  void release(int32_t row) {
    const int32_t token = s_.token[row];
    forget_coding(row);
    if (s_.slot != nullptr && s_.slot[row] >= 0) s_.free_slots[s_.counts[Count::free_slots]++] = s_.slot[row];
    if (token >= 0 && s_.copies[token] > 0 && --s_.copies[token] == 0) {
      s_.copies[token] = kEvicted;
      if (s_.evicted != nullptr) s_.evicted[s_.counts[Count::evicted]] = token;
      s_.counts[Count::evicted] += 1;
    }
  }
  // Contents of a row.
  struct Row {
    int32_t from, token, slot;
    double score;
    Real num, den;
    Coding coding;
    uint8_t mark;
  };
  Row row_at(int32_t i) const {
    return {i,
            s_.token[i],
            s_.slot != nullptr ? s_.slot[i] : -1,
            s_.score != nullptr ? s_.score[i] : 0,
            num(i),
            den(i),
            coding(i),
            s_.mark[i]};
  }
  void put_row(int32_t to, const Row& row) {
    s_.token[to] = row.token;
    if (s_.num != nullptr) s_.num[to] = row.num, s_.den[to] = row.den;
    if (s_.slot != nullptr) s_.slot[to] = row.slot;
    if (s_.score != nullptr) s_.score[to] = row.score;
    if (s_.coding != nullptr) s_.coding[to] = row.coding;
    s_.mark[to] = row.mark;
  }
  CacheStorage<Real> s_;
};

template <class C>
concept Cache = requires(C cache, const C view, SerialTeam team, const Token<typename C::real>& token) {
  { view.size() } -> std::same_as<int32_t>;
  { view.token(0) } -> std::same_as<int32_t>;
  { view.verbatim(0) } -> std::same_as<bool>;
  { view.score(0) } -> std::same_as<double>;
  cache.push(token);
  cache.drop(team, 0);
  cache.weigh(0, 1, 1);
};
static_assert(Cache<BasicCache<float>> && Cache<BasicCache<double>>);

}  // namespace kvreplay
