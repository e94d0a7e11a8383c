#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "replay/groups.hpp"
#include "replay/head_replay.hpp"

namespace kvreplay {

// Rows of one layer for the next `count` tokens, one after the other.
struct ArrivingRows {
  int32_t count = 0;
  std::span<const float> q, k, v;      // [q_heads, count, dim], [kv_heads, count, dim], [kv_heads, count, v_dim]
  std::span<const int32_t> positions;  // [count]; empty: they go on from the last one
};

// A replay whose rows behind the prompt arrive while it runs: one method instance on some layers of one prompt, with
// the caches of all kv heads. CPU, single precision. Layers may be used by several threads at a time.
class GrowingReplay {
 public:
  struct LayerShape {
    int32_t q_heads = 0, kv_heads = 0, dim = 0, v_dim = 0;
  };

  // Cuts the prompts of all layers. cells: one for each kv head of each layer; their extents hold the prompt and all
  // tokens that may follow, for which options.tensors have room (trace/prompt_with_room.hpp). Measures, saved arrays,
  // queries and a device that the options name are ignored. Throws ConfigError for a method that looks at later rows,
  // and if it fails on the prompt.
  GrowingReplay(std::vector<Cell> cells, RunOptions options);

  // Throws ConfigError if the layer is not replayed.
  LayerShape shape(int32_t layer) const;
  // The rows arrive one after the other. out: [q_heads, count, v_dim], the attention over what the caches hold. Throws
  // ConfigError for rows that do not fit or are not finite, and if the method fails: its layer then takes no more rows.
  void step(int32_t layer, const ArrivingRows& rows, std::span<float> out);
  // Tokens that a kv head's caches hold, ascending: one list, or with gqa.level query one for each query head.
  std::vector<std::vector<int32_t>> kept(int32_t layer, int32_t kv_head) const;
  // Bytes of all caches.
  double bytes() const;

 private:
  // One kv head, or all of the layer.
  struct Head {
    HeadStream<float> stream;
    int32_t first_kv_head = 0;
    std::unique_ptr<HeadReplay<float>> replay;
  };
  struct Layer {
    std::vector<std::unique_ptr<Head>> heads;
    LayerShape shape;
    std::vector<float> out;  // [q_heads, v_dim] of the newest token
    mutable std::mutex mutex;
  };
  static bool never() { return false; }
  template <class Work>
  void each_cache(const Layer& layer, Work work) const;
  bool waits(const Layer& layer) const;
  void expect_no_waiting(int32_t number, const Layer& layer) const;
  void cut_together();
  std::unique_ptr<Head> begun(const Group& group, Reader& reader) const;
  void add(std::unique_ptr<Head> head, int32_t layer);
  const Layer& at(int32_t layer) const;
  void expect_fit(int32_t number, const Layer& layer, const ArrivingRows& rows) const;
  void take_row(Layer& layer, const ArrivingRows& rows, int32_t row, std::span<float> out) const;
  void take_token(Layer& layer, const ArrivingRows& rows, int32_t row) const;

  std::vector<Cell> cells_;
  RunOptions options_;
  std::map<int32_t, Layer> layers_;
  // For heads of several layers that cut together: the tokens that each cut leaves, by layer and kv head.
  bool cuts_together_ = false;
  std::map<std::pair<int32_t, int32_t>, TokenLists> cuts_;
  std::mutex together_;
};

}  // namespace kvreplay
