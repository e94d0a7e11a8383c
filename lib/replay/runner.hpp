#pragma once
#include <functional>
#include <vector>

#include "evaluate/head_device.hpp"
#include "exact/query_selection.hpp"
#include "exact/tile.hpp"
#include "measures/cell_result.hpp"
#include "measures/needles.hpp"
#include "trace/tensors.hpp"

namespace kvreplay {

struct RunOptions {
  OpenTensors tensors;  // of the run's traces, which Place::trace counts
  QuerySelection queries;
  SaveOptions save;
  int jobs = 1;  // threads over kv heads; the numbers do not depend on it
  bool double_precision = false;
  bool audit = false;  // poison what no policy may read
  // Some method of the plan (not only of these cells) observes every decode row. Strips are computed for all
  // rows then, so that a resumed run computes what a whole one does.
  bool every_row = false;
  // Tokens of a trace up to which every row that some cache observes has a strip.
  int32_t strips_up_to = kLongTrace;
  Wanted wanted;
  Needles needles;
  // Null: everything is computed by this machine's cores. Single precision only. A cell that the device has
  // no way for is replayed by the cores.
  OpenHeadDevice device;
  // Called from worker threads, one at a time (under a lock).
  std::function<void(const Cell&, const CellResult&)> on_cell;
  std::function<void()> on_head;  // after the last cell of a kv head, under the same lock
  std::function<void(const Cell&)> on_start;
  // Asked between cells and tiles; true ends the run after what is in flight.
  std::function<bool()> stop;
  // Asked between heads; true: heads in work are finished, and no other is begun.
  std::function<bool()> drain;
  // A head that cannot be read, or has no budget that can be shared, fails its cells and the others go on.
  // Otherwise it ends the run.
  bool outlive_heads = false;
};

// Replays the cells, grouped by kv head so that the tensors are read and the exact pass is computed
// once per group. Errors of one cell (a denominator of zero, a broken promise of a policy) become a
// failed CellResult; a trace that cannot be read throws TraceError.
void run_cells(const std::vector<Cell>& cells, const RunOptions& options);

// The same cells, each with its share where a budget is shared. Throws where one cannot be found, unless heads are
// outlived.
std::vector<Cell> with_budgets(std::vector<Cell> cells, const RunOptions& options);

}  // namespace kvreplay
