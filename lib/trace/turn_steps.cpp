#include "trace/turn_steps.hpp"

#include <algorithm>

namespace kvreplay {

const Turns::Segment* Turns::beginning_at(int32_t token) const {
  const auto found = std::find_if(segments.begin(), segments.end(), [&](const Segment& s) { return s.begin == token; });
  return found == segments.end() ? nullptr : &*found;
}

const Turns::Segment& Turns::of(int32_t token) const {
  return *std::find_if(segments.begin(), segments.end(), [&](const Segment& s) { return token < s.end; });
}

int32_t Turns::next_begin(int32_t token, int32_t end) const {
  for (const Segment& s : segments)
    if (s.begin > token) return std::min(s.begin, end);
  return end;
}

Turns turns_of(const SegmentsInfo& segments, int32_t prompt, int32_t tokens) {
  Turns turns;
  turns.step.assign(size_t(tokens), 0);
  for (size_t s = 0; s < segments.count(); ++s) {
    const int32_t begin = segments.start[s], end = std::min(segments.start[s + 1], tokens);
    if (begin < prompt || begin >= tokens) continue;
    const bool output = segments.kind[s] == SegmentKind::output;
    turns.segments.push_back(
        {int32_t(s), begin, end, segments.kind[s], segments.names.empty() ? "" : segments.names[s]});
    for (int32_t t = begin; t < end; ++t) turns.step[size_t(t)] = output ? turns.step[size_t(t) - 1] + 1 : -1;
    if (!output) turns.step[size_t(end) - 1] = 0;
  }
  return turns;
}

int32_t longest_input(const SegmentsInfo& segments, int32_t prompt, int32_t tokens) {
  int32_t longest = 0;
  for (const Turns::Segment& s : turns_of(segments, prompt, tokens).segments)
    if (s.kind != SegmentKind::output) longest = std::max(longest, s.end - s.begin);
  return longest;
}

}  // namespace kvreplay
