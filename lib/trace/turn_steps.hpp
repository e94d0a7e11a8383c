#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trace/trace_info.hpp"

namespace kvreplay {

// How the text of a stream arrives, where it has turns: inputs at once, outputs token by token. Empty without turns.
struct Turns {
  struct Segment {
    int32_t number, begin, end;  // number: its index in the trace, or that of the branch
    SegmentKind kind;
    std::string name;  // "" if it has none
  };
  std::vector<Segment> segments;  // behind the prompt
  // [tokens] Outputs up to here since the last input; 0: the last token of an input, or a token of the prompt; -1: a
  // token of an input whose last one is still to come.
  std::vector<int32_t> step;

  bool any() const { return !step.empty(); }
  bool is_output(int32_t token) const { return !any() || step[size_t(token)] > 0; }
  // The segment that begins with this token; null if none does.
  const Segment* beginning_at(int32_t token) const;
  const Segment& of(int32_t token) const;                // token: behind the prompt
  int32_t next_begin(int32_t token, int32_t end) const;  // the first segment that begins behind a token, or end
};

// The turns of a text's first `tokens` tokens. prompt: the end of its first input.
Turns turns_of(const SegmentsInfo& segments, int32_t prompt, int32_t tokens);

// Tokens of the longest input behind the prompt.
int32_t longest_input(const SegmentsInfo& segments, int32_t prompt, int32_t tokens);

}  // namespace kvreplay
