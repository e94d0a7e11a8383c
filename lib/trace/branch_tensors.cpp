#include "trace/branch_tensors.hpp"

#include <algorithm>
#include <vector>

#include "trace/tensors_view.hpp"

namespace kvreplay {
namespace {

class WithBranch final : public TensorsView {
 public:
  WithBranch(const Tensors& trace, const std::string& prompt, size_t branch)
      : TensorsView(trace), prompt_(prompt), branch_(branch) {
    PromptInfo& own = *std::find_if(info_.prompts.begin(), info_.prompts.end(),
                                    [&](const PromptInfo& candidate) { return candidate.id == prompt; });
    const BranchInfo& follows = own.branches.at(branch);
    context_ = own.context_tokens, tokens_ = follows.tokens;
    own.tokens = context_ + tokens_, own.n_prompt = context_;
    const auto context = int32_t(context_), all = int32_t(own.tokens), input = int32_t(follows.input_tokens);
    own.segments = {{0, context}, {SegmentKind::context}, {follows.name}};
    const auto add = [&](int32_t end, SegmentKind kind) {
      if (end == own.segments.start.back()) return;
      own.segments.start.push_back(end), own.segments.kind.push_back(kind), own.segments.names.push_back(follows.name);
    };
    add(context + input, SegmentKind::input);
    add(all, SegmentKind::output);
    for (LayerInfo& layer : own.layers) {
      layer.tokens = own.tokens;
      const std::vector<int32_t> rows = query_positions(prompt, layer.layer);
      layer.query_rows = int64_t(rows.size());
      layer.gradient_samples = layer.gradient_rows = 0, layer.gradient_recorded = false, layer.gradient_answer = false;
    }
  }

  void read_keys(const std::string& prompt, int32_t layer, int32_t head, int64_t count,
                 std::span<float> into) const override {
    if (prompt != prompt_) return trace_.read_keys(prompt, layer, head, count, into);
    read_rows(
        context_, 0, count, into, [&](int64_t n, std::span<float> to) { trace_.read_keys(prompt, layer, head, n, to); },
        [&](std::span<float> to) { trace_.read_branch_keys(prompt, branch_, layer, head, to); });
  }
  void read_values(const std::string& prompt, int32_t layer, int32_t head, int64_t count,
                   std::span<float> into) const override {
    if (prompt != prompt_) return trace_.read_values(prompt, layer, head, count, into);
    read_rows(
        context_, 0, count, into,
        [&](int64_t n, std::span<float> to) { trace_.read_values(prompt, layer, head, n, to); },
        [&](std::span<float> to) { trace_.read_branch_values(prompt, branch_, layer, head, to); });
  }
  void read_queries(const std::string& prompt, int32_t layer, int32_t head, int64_t first, int64_t rows,
                    std::span<float> into) const override {
    if (prompt != prompt_) return trace_.read_queries(prompt, layer, head, first, rows, into);
    read_rows(
        context_queries(layer), first, rows, into,
        [&](int64_t n, std::span<float> to) { trace_.read_queries(prompt, layer, head, first, n, to); },
        [&](std::span<float> to) { trace_.read_branch_queries(prompt, branch_, layer, head, to); });
  }
  DeviceTensors on_device(const std::string& prompt, int32_t layer) const override {
    return prompt == prompt_ ? DeviceTensors{} : trace_.on_device(prompt, layer);
  }
  // Classes of a branch's tokens are not recorded: they count as plain.
  std::vector<uint8_t> token_classes(const std::string& prompt) const override {
    std::vector<uint8_t> classes = trace_.token_classes(prompt);
    if (prompt == prompt_ && !classes.empty())
      classes.resize(size_t(context_)), classes.resize(size_t(context_ + tokens_));
    return classes;
  }
  std::vector<int32_t> position_ids(const std::string& prompt) const override {
    std::vector<int32_t> positions = trace_.position_ids(prompt);
    if (prompt != prompt_) return positions;
    const std::vector<int32_t> later = trace_.branch_position_ids(prompt, branch_);
    positions.resize(size_t(context_));
    positions.insert(positions.end(), later.begin(), later.end());
    return positions;
  }
  std::vector<int32_t> query_positions(const std::string& prompt, int32_t layer) const override {
    std::vector<int32_t> positions = trace_.query_positions(prompt, layer);
    if (prompt != prompt_) return positions;
    std::erase_if(positions, [&](int32_t token) { return token >= context_; });
    for (int64_t t = 0; t < tokens_; ++t) positions.push_back(int32_t(context_ + t));
    return positions;
  }
  std::vector<int32_t> gradient_rows(const std::string& prompt, int32_t layer) const override {
    return prompt == prompt_ ? std::vector<int32_t>{} : trace_.gradient_rows(prompt, layer);
  }

 private:
  int64_t context_queries(int32_t number) const { return layer(prompt_, number).query_rows - tokens_; }
  // Rows first..first+count-1 of a head that has `context` rows before the branch's. of_trace(n, into): the first n of
  // them, which are the context's. of_branch(into): all rows of the branch.
  template <class Trace, class Branch>
  void read_rows(int64_t context, int64_t first, int64_t count, std::span<float> into, Trace of_trace,
                 Branch of_branch) const {
    const int64_t before = std::clamp<int64_t>(context - first, 0, count);
    const auto width = count > 0 ? int64_t(into.size()) / count : 0;
    if (before > 0) of_trace(before, into.first(size_t(before * width)));
    if (before == count) return;
    std::vector<float> all(size_t(tokens_ * width));
    of_branch(all);
    std::copy_n(all.begin() + (first + before - context) * width, (count - before) * width,
                into.begin() + before * width);
  }

  const std::string prompt_;
  const size_t branch_;
  int64_t context_ = 0, tokens_ = 0;
};

}  // namespace

std::unique_ptr<Tensors> with_branch(const Tensors& trace, const std::string& prompt, size_t branch) {
  return std::make_unique<WithBranch>(trace, prompt, branch);
}

}  // namespace kvreplay
