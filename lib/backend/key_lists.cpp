#include "backend/key_lists.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace kvreplay {
namespace {

constexpr int32_t kPrompt = 0, kLater = 1;  // parts
constexpr size_t kBandCost = 64;            // of a band, in tokens: whole tiles of keys are multiplied

bool is_whole_prompt(const HeldTokens& cache, int32_t prompt) {
  return !cache.weighted && int32_t(cache.entries.size()) == prompt;
}

}  // namespace

KeyLists::KeyLists(const std::vector<HeldTokens>& caches, const std::vector<int32_t>& rows, int32_t prompt,
                   int32_t heads, bool wholes)
    : rows_(rows), lists_(caches.size()), prompt_(prompt) {
  add_run(heads, 0, prompt - 1);
  add_run(heads, prompt, rows.empty() ? prompt : rows.back());
  refs_ = {{kPrompt, 1, 1}, {kLater, 1, 1}};
  std::map<size_t, std::vector<size_t>> families;
  for (size_t id = 0; id < caches.size(); ++id) {
    if (caches[id].later) families[caches[id].family].push_back(id);
    else list_moving(id, caches[id]);
  }
  for (const auto& [number, family] : families) add_fixed(caches, family);
  if (wholes) list_wholes(caches);
}

// A cache whose tokens come and go has its list already.
void KeyLists::list_wholes(const std::vector<HeldTokens>& caches) {
  const size_t attended = parts_.size();
  for (size_t id = 0; id < caches.size(); ++id) {
    if (caches[id].later) add_set(caches[id], caches[id].entries, false);
    wholes_.push_back(caches[id].later ? parts_.back()
                                       : parts_[size_t(refs_[size_t(lists_[id].all.first)].part)]);
  }
  parts_.resize(attended);  // nobody attends to them
}

// Tokens first..last, or up to a row's own.
int32_t KeyLists::add_run(int32_t heads, int32_t first, int32_t last) {
  Part part;
  part.run = true, part.spans = spans_.size(), part.heads = heads;
  for (size_t tile = 0; tile < rows_.size(); tile += kRows) {
    const int32_t newest = rows_[std::min(tile + kRows, rows_.size()) - 1];
    spans_.push_back({first, std::max(0, std::min(last, newest) - first + 1)});
  }
  parts_.push_back(part);
  return int32_t(parts_.size()) - 1;
}

auto KeyLists::open_part(const HeldTokens& cache) -> Part& {
  Part part;
  part.entries = tokens_.size(), part.spans = spans_.size();
  part.first_head = cache.first_head, part.heads = cache.heads;
  parts_.push_back(part);
  return parts_.back();
}

void KeyLists::put(const Entry& entry) {
  tokens_.push_back(entry.token), until_.push_back(entry.until);
  num_.push_back(entry.num), den_.push_back(entry.den);
}

// The same tokens for every row.
int32_t KeyLists::add_set(const HeldTokens& cache, const std::vector<Entry>& entries, bool weighted) {
  open_part(cache).weighted = weighted;
  for (const Entry& entry : entries) put(entry);
  for (size_t tile = 0; tile < rows_.size(); tile += kRows) spans_.push_back({0, int32_t(entries.size())});
  return int32_t(parts_.size()) - 1;
}

// Tokens come and go: of each tile, those that some row of it may see.
int32_t KeyLists::add_moving(const HeldTokens& cache) {
  Part& part = open_part(cache);
  part.leaves = true;
  std::vector<Entry> held;
  size_t next = 0;
  for (size_t tile = 0; tile < rows_.size(); tile += kRows) {
    const int32_t oldest = rows_[tile], newest = rows_[std::min(tile + kRows, rows_.size()) - 1];
    std::erase_if(held, [&](const Entry& entry) { return entry.until <= oldest; });
    for (; next < cache.entries.size() && cache.entries[next].token <= newest; ++next)
      if (cache.entries[next].until > oldest) held.push_back(cache.entries[next]);
    spans_.push_back({int32_t(tokens_.size() - part.entries), int32_t(held.size())});
    for (const Entry& entry : held) put(entry);
  }
  return int32_t(parts_.size()) - 1;
}

void KeyLists::list_moving(size_t id, const HeldTokens& cache) {
  lists_[id].all = {int32_t(refs_.size()), 1, 0};
  refs_.push_back({add_moving(cache), 1, 1});
}

// Bands where they are fewer than what the caches hold one by one.
void KeyLists::add_fixed(const std::vector<HeldTokens>& caches, const std::vector<size_t>& family) {
  using Weights = std::pair<float, float>;
  using Signature = std::vector<std::pair<size_t, Weights>>;  // (cache, num and den) of a token
  std::map<int32_t, Signature> of_token;
  size_t apart = 0, together = 0;
  for (const size_t id : family) {
    if (is_whole_prompt(caches[id], prompt_)) continue;
    apart += caches[id].entries.size() + kBandCost;
    for (const Entry& e : caches[id].entries) of_token[e.token].emplace_back(id, Weights{e.num, e.den});
  }
  std::map<Signature, std::vector<Entry>> bands;
  for (const auto& [token, signature] : of_token)
    bands[signature].push_back({token, caches[family.front()].entries.front().until, 1, 1});
  for (const auto& [signature, entries] : bands) together += entries.size() + kBandCost;
  std::map<size_t, std::vector<PartRef>> of_cache, of_set;
  if (together <= apart) {
    for (const auto& [signature, entries] : bands) {
      const int32_t part = add_set(caches[family.front()], entries, false);
      for (const auto& [id, weights] : signature) {
        of_cache[id].push_back({part, weights.first, weights.second});
        of_set[id].push_back({part, 1, 1});
      }
    }
  } else {
    for (const size_t id : family) {
      const HeldTokens& cache = caches[id];
      if (is_whole_prompt(cache, prompt_)) continue;
      of_cache[id].push_back({add_set(cache, cache.entries, cache.weighted), 1, 1});
      if (cache.set) of_set[id].push_back({add_set(cache, cache.entries, false), 1, 1});
    }
  }
  const auto list = [&](std::vector<PartRef> parts, size_t id) {
    if (is_whole_prompt(caches[id], prompt_)) parts.push_back({kPrompt, 1, 1});
    const PartList all{int32_t(refs_.size()), int32_t(parts.size()) + 1, int32_t(parts.size())};
    parts.push_back({kLater, 1, 1});
    refs_.insert(refs_.end(), parts.begin(), parts.end());
    return all;
  };
  for (const size_t id : family) {
    lists_[id].all = list(of_cache[id], id);
    if (caches[id].set) lists_[id].set = list(of_set[id], id);
  }
}

auto KeyLists::upload(Runtime& runtime) const -> OnDevice {
  OnDevice d{{runtime, std::span(tokens_)}, {runtime, std::span(until_)},
             {runtime, std::span(num_)},    {runtime, std::span(den_)},
             {runtime, std::span(spans_)},  {},
             {runtime, std::span(refs_)},   {}};
  std::vector<AttendPart> parts;
  for (const Part& part : parts_) parts.push_back(on_device(part, d));
  for (const Part& part : wholes_) d.wholes.push_back(on_device(part, d));
  d.parts = DeviceArray<AttendPart>(runtime, std::span<const AttendPart>(parts));
  return d;
}

AttendPart KeyLists::on_device(const Part& p, const OnDevice& d) const {
  return {d.spans.data() + p.spans,
          p.run ? nullptr : d.tokens.data() + p.entries,
          p.leaves ? d.until.data() + p.entries : nullptr,
          p.weighted ? d.num.data() + p.entries : nullptr,
          p.weighted ? d.den.data() + p.entries : nullptr,
          p.first_head,
          p.heads};
}

}  // namespace kvreplay
