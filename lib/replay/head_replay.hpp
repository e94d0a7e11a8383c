#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "measures/accumulator.hpp"
#include "measures/operator_norm.hpp"
#include "replay/lane.hpp"
#include "replay/runner.hpp"

namespace kvreplay {

// All cells of one kv head, replayed together: tile after tile, the exact pass once, then every cache.
template <class Real>
class HeadReplay {
 public:
  HeadReplay(const HeadStream<Real>& stream, const RunOptions& options);
  void add(const Cell& cell);
  using Stop = std::function<bool()>;
  using Report = std::function<void(const Cell&, const CellResult&)>;
  // Reports every cell that was finished; a stopped run reports none of those in flight.
  void run(const Stop& stop, const Report& report);

 private:
  // A cell: one cache for the group, or with gqa.level query one for each of its query heads.
  struct Replayed {
    const Cell* cell;
    std::vector<std::unique_ptr<Lane<Real>>> lanes;
    std::unique_ptr<Accumulator> errors;
    std::vector<double> uniforms;
    std::string failure;
    bool alive() const { return failure.empty(); }
  };
  std::vector<uint8_t> scored_tokens() const;
  void read_prompts();
  Tile<Real> next_tile(int32_t begin) const;
  void fill_tile(Tile<Real>& tile);
  void replay_tile(const Tile<Real>& tile, Replayed& r);
  CellResult result_of(Replayed& r) const;
  void account(Replayed& r, CellMeasures& m) const;
  template <class F>
  void guarded(Replayed& r, F f);

  const HeadStream<Real>& stream_;
  const RunOptions& options_;
  std::vector<Replayed> cells_;
  bool every_row_;               // some method needs the probabilities of rows that are not scored
  std::vector<uint8_t> scored_;  // [tokens]
  int64_t scored_rows_ = 0;
  ValueNorms norms_;
  int32_t norms_up_to_ = 0;
  LaneWorkspace<Real> workspace_;
  LaneTile<Real> lane_tile_;
};

}  // namespace kvreplay
