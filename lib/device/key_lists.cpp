#include "device/key_lists.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace kvreplay {
namespace {

constexpr int32_t kPrompt = 0, kLater = 1;  // parts
constexpr int32_t kBandCost = 64;           // cost of a band, in tokens: whole tiles of keys are multiplied

// Appends from[i] for each of `places`.
template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, const std::vector<int32_t>& places) {
  const size_t first = to.size(), count = places.size();
  to.resize(first + count);
  for (size_t i = 0; i < count; ++i) to[first + i] = from[size_t(places[i])];
}
template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Keeps the places of tokens that row `row` or a later one sees.
void drop_left(std::vector<int32_t>& places, const std::vector<int32_t>& until, int32_t row) {
  size_t left = 0;
  for (const int32_t place : places) {
    places[left] = place;
    left += until[size_t(place)] > row ? 1 : 0;
  }
  places.resize(left);
}

}  // namespace

KeyLists::KeyLists(const std::vector<DeviceCache>& caches, const std::vector<int32_t>& rows, int32_t prompt,
                   int32_t heads, bool wholes)
    : rows_(rows), lists_(caches.size()), prompt_(prompt) {
  add_run(heads, 0, prompt - 1);
  add_run(heads, prompt, rows.empty() ? prompt : rows.back());
  refs_ = {{kPrompt, 1, 1}, {kLater, 1, 1}};
  std::map<size_t, std::vector<size_t>> families;
  for (size_t id = 0; id < caches.size(); ++id) {
    if (!caches[id].held.later) list_moving(id, caches[id]);
    else families[caches[id].family].push_back(id);
  }
  for (const auto& [number, family] : families)
    for (size_t first = 0; first < family.size(); first += size_t(Band::kMostMembers)) {
      const size_t end = std::min(family.size(), first + size_t(Band::kMostMembers));
      add_family(caches, {family.begin() + int64_t(first), family.begin() + int64_t(end)});
    }
  if (wholes) list_wholes(caches);
}

// A cache whose tokens change over time already has its list.
void KeyLists::list_wholes(const std::vector<DeviceCache>& caches) {
  const size_t attended = parts_.size();
  for (size_t id = 0; id < caches.size(); ++id) {
    if (caches[id].held.later) add_set(caches[id], entries_of(caches[id].held), false);
    wholes_.push_back(caches[id].held.later ? parts_.back() : parts_[size_t(refs_[size_t(lists_[id].all.first)].part)]);
  }
  parts_.resize(attended);  // no row attends to them
}

// Tokens first..last, or up to the row's own token.
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

auto KeyLists::open_part(const DeviceCache& cache) -> Part& {
  Part part;
  part.tokens = tokens_.size(), part.until = until_.size(), part.weights = num_.size(), part.spans = spans_.size();
  part.first_head = cache.first_head, part.heads = cache.heads;
  parts_.push_back(part);
  return parts_.back();
}

void KeyLists::Entries::add(int32_t one, int32_t leaves, double numerator, double denominator) {
  token.push_back(one), until.push_back(leaves);
  num.push_back(float(numerator)), den.push_back(float(denominator));
}

auto KeyLists::entries_of(const Residency& held) -> Entries {
  Entries entries;
  for (const Residency::Run& run : held.runs)
    for (int32_t token = run.first; token < run.last; ++token) entries.add(token, run.until, run.num, run.den);
  return entries;
}

auto KeyLists::entries_of(const Band& band) -> Entries {
  Entries entries;
  for (size_t i = 0; i < band.tokens.size(); ++i) {
    const Band::Weights w = band.weights_of.empty() ? Band::Weights{} : band.weights_of[i];
    for (int32_t token = band.tokens[i].first; token < band.tokens[i].last; ++token)
      entries.add(token, Residency::kStays, w.num, w.den);
  }
  return entries;
}

// A set of tokens that every row reads.
int32_t KeyLists::add_set(const DeviceCache& cache, const Entries& entries, bool weighted) {
  open_part(cache).weighted = weighted;
  append(tokens_, entries.token);
  if (weighted) append(num_, entries.num), append(den_, entries.den);
  for (size_t tile = 0; tile < rows_.size(); tile += kRows) spans_.push_back({0, int32_t(entries.size())});
  return int32_t(parts_.size()) - 1;
}

// A set that changes over time: for each tile, the tokens that some row of it may see.
int32_t KeyLists::add_moving(const DeviceCache& cache) {
  Part& part = open_part(cache);
  part.leaves = true, part.weighted = cache.held.weighted();
  const Entries entries = entries_of(cache.held);
  std::vector<int32_t> held;  // places in `entries`
  size_t next = 0;
  for (size_t tile = 0; tile < rows_.size(); tile += kRows) {
    const int32_t oldest = rows_[tile], newest = rows_[std::min(tile + kRows, rows_.size()) - 1];
    drop_left(held, entries.until, oldest);
    for (; next < entries.size() && entries.token[next] <= newest; ++next)
      if (entries.until[next] > oldest) held.push_back(int32_t(next));
    spans_.push_back({int32_t(tokens_.size() - part.tokens), int32_t(held.size())});
    append(tokens_, entries.token, held), append(until_, entries.until, held);
    if (part.weighted) append(num_, entries.num, held), append(den_, entries.den, held);
  }
  return int32_t(parts_.size()) - 1;
}

void KeyLists::list_moving(size_t id, const DeviceCache& cache) {
  lists_[id].all = {int32_t(refs_.size()), 1, 0};
  refs_.push_back({add_moving(cache), 1, 1});
}

void KeyLists::add_family(const std::vector<DeviceCache>& caches, const std::vector<size_t>& family) {
  std::vector<const Residency*> members;
  for (const size_t id : family) members.push_back(caches[id].held.everything(prompt_) ? nullptr : &caches[id].held);
  std::vector<std::vector<PartRef>> of_cache(family.size()), of_set(family.size());
  for (const Band& band : find_bands(members, kBandCost)) {
    const Entries entries = entries_of(band);
    const bool weighted = !band.weights_of.empty();
    const DeviceCache& first = caches[family[size_t(std::countr_zero(band.members))]];
    const int32_t part = add_set(first, entries, weighted);
    const int32_t set = weighted && first.set ? add_set(first, entries, false) : part;
    for (size_t m = 0; m < family.size(); ++m) {
      if ((band.members >> m & 1u) == 0) continue;
      const Band::Weights w = band.of(m);
      of_cache[m].push_back({part, float(w.num), float(w.den)}), of_set[m].push_back({set, 1, 1});
    }
  }
  const auto list = [&](std::vector<PartRef> parts, size_t m) {
    if (members[m] == nullptr) parts.push_back({kPrompt, 1, 1});
    const PartList all{int32_t(refs_.size()), int32_t(parts.size()) + 1, int32_t(parts.size())};
    parts.push_back({kLater, 1, 1});
    refs_.insert(refs_.end(), parts.begin(), parts.end());
    return all;
  };
  for (size_t m = 0; m < family.size(); ++m) {
    lists_[family[m]].all = list(of_cache[m], m);
    if (caches[family[m]].set) lists_[family[m]].set = list(of_set[m], m);
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
          p.run ? nullptr : d.tokens.data() + p.tokens,
          p.leaves ? d.until.data() + p.until : nullptr,
          p.weighted ? d.num.data() + p.weights : nullptr,
          p.weighted ? d.den.data() + p.weights : nullptr,
          p.first_head,
          p.heads};
}

}  // namespace kvreplay
