#include "trace/prompt_with_room.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "trace/tensors_view.hpp"

namespace kvreplay {
namespace {

class WithRoom final : public TensorsView {
 public:
  WithRoom(std::unique_ptr<Tensors> trace, const std::string& prompt, int64_t tokens)
      : TensorsView(*trace), held_(std::move(trace)), prompt_(prompt), room_(tokens) {
    for (PromptInfo& own : info_.prompts)
      if (own.id == prompt) make_room(own);
  }

  void read_keys(const std::string& prompt, int32_t layer, int32_t head, int64_t count,
                 std::span<float> into) const override {
    read_tokens(prompt, count, into,
                [&](int64_t n, std::span<float> to) { trace_.read_keys(prompt, layer, head, n, to); });
  }
  void read_values(const std::string& prompt, int32_t layer, int32_t head, int64_t count,
                   std::span<float> into) const override {
    read_tokens(prompt, count, into,
                [&](int64_t n, std::span<float> to) { trace_.read_values(prompt, layer, head, n, to); });
  }
  void read_queries(const std::string& prompt, int32_t layer, int32_t head, int64_t first, int64_t rows,
                    std::span<float> into) const override {
    const int64_t held = prompt == prompt_ ? int64_t(prompt_queries(layer).size()) - first : rows;
    read_rows(held, rows, into,
              [&](int64_t n, std::span<float> to) { trace_.read_queries(prompt, layer, head, first, n, to); });
  }
  DeviceTensors on_device(const std::string& prompt, int32_t layer) const override {
    return prompt == prompt_ ? DeviceTensors{} : trace_.on_device(prompt, layer);
  }
  // Nobody says of which class a token is that has not arrived: it counts as plain.
  std::vector<uint8_t> token_classes(const std::string& prompt) const override {
    std::vector<uint8_t> classes = trace_.token_classes(prompt);
    if (prompt == prompt_ && !classes.empty()) classes.resize(size_t(context_)), classes.resize(size_t(all()));
    return classes;
  }
  std::vector<int32_t> position_ids(const std::string& prompt) const override {
    std::vector<int32_t> positions = trace_.position_ids(prompt);
    if (prompt != prompt_) return positions;
    positions.resize(size_t(context_));
    while (int64_t(positions.size()) < all()) positions.push_back(positions.empty() ? 0 : positions.back() + 1);
    return positions;
  }
  std::vector<int32_t> query_positions(const std::string& prompt, int32_t layer) const override {
    if (prompt != prompt_) return trace_.query_positions(prompt, layer);
    std::vector<int32_t> positions = prompt_queries(layer);
    for (int64_t t = context_; t < all(); ++t) positions.push_back(int32_t(t));
    return positions;
  }
  std::vector<int32_t> gradient_rows(const std::string& prompt, int32_t layer) const override {
    return prompt == prompt_ ? std::vector<int32_t>{} : trace_.gradient_rows(prompt, layer);
  }

 private:
  int64_t all() const { return context_ + room_; }
  void make_room(PromptInfo& own) {
    context_ = own.n_prompt;
    own.tokens = all(), own.n_generated = 0, own.waiting = room_;
    own.segments = {}, own.branches.clear(), own.context_tokens = 0;
    for (LayerInfo& layer : own.layers) {
      layer.tokens = all();
      layer.query_rows = int64_t(prompt_queries(layer.layer).size()) + room_;
      layer.gradient_samples = layer.gradient_rows = 0, layer.gradient_recorded = false;
    }
  }
  std::vector<int32_t> prompt_queries(int32_t layer) const {
    std::vector<int32_t> positions = trace_.query_positions(prompt_, layer);
    std::erase_if(positions, [&](int32_t token) { return token >= context_; });
    return positions;
  }
  template <class Read>
  void read_tokens(const std::string& prompt, int64_t count, std::span<float> into, Read read) const {
    read_rows(prompt == prompt_ ? context_ : count, count, into, read);
  }
  // The first `held` of `count` rows are the trace's; the others are zero.
  template <class Read>
  static void read_rows(int64_t held, int64_t count, std::span<float> into, Read read) {
    const int64_t some = std::clamp<int64_t>(held, 0, count);
    const int64_t numbers = count > 0 ? int64_t(into.size()) / count * some : 0;
    if (some > 0) read(some, into.first(size_t(numbers)));
    std::fill(into.begin() + numbers, into.end(), 0.0f);
  }

  std::unique_ptr<Tensors> held_;
  const std::string prompt_;
  const int64_t room_;
  int64_t context_ = 0;
};

}  // namespace

std::unique_ptr<Tensors> with_room(std::unique_ptr<Tensors> trace, const std::string& prompt, int64_t tokens) {
  return std::make_unique<WithRoom>(std::move(trace), prompt, tokens);
}

}  // namespace kvreplay
