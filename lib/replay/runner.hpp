#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "catalog/cell.hpp"
#include "catalog/working_set_options.hpp"
#include "evaluate/head_device.hpp"
#include "exact/head_stream.hpp"
#include "exact/tile.hpp"
#include "formats/coded_tokens.hpp"
#include "measures/accumulator.hpp"
#include "measures/needles.hpp"
#include "trace/tensors.hpp"

namespace kvreplay {

struct RunOptions {
  OpenTensors tensors;  // traces of the run, indexed by Place::trace
  QuerySelection queries;
  SaveOptions save;
  int jobs = 1;  // threads over kv heads; the numbers do not depend on it
  bool double_precision = false;
  bool audit = false;  // poison memory that no policy may read
  // Set if some method of the plan (not only of these cells) observes every decode row. Strips are then computed for
  // all rows, so that a resumed run computes what a whole run does.
  bool every_row = false;
  // Set if only sizes are asked for, of caches whose size their budget fixes whatever they hold: sums over the prompt
  // are then made up.
  bool sizes_alone = false;
  // Longest trace, in tokens, on which every row that some cache observes has a strip.
  int32_t strips_up_to = kLongTrace;
  Wanted wanted;
  Needles needles;
  WorkingSetOptions working_set;
  // Null: the CPU computes everything. Single precision only. The CPU replays cells that the device cannot replay.
  OpenHeadDevice device;
  // Called from worker threads, one at a time (under a lock).
  std::function<void(const Cell&, const CellResult&)> on_cell;
  std::function<void()> on_head;  // after the last cell of a kv head, under the same lock
  std::function<void(const Cell&)> on_start;
  // Asked between cells and tiles; true stops the run without finishing the heads in work.
  std::function<bool()> stop;
  // Asked between heads; true: heads in work are finished, and no other head is started.
  std::function<bool()> drain;
  // If set, a head that cannot be read, or has no budget that can be shared, fails its cells and the others go on.
  // Otherwise it ends the run.
  bool continue_on_head_failure = false;
};

// Replays the cells, grouped by kv head, so that each group reads its tensors and computes the exact pass once. An
// error of one cell (a zero denominator, a policy that breaks a promise) becomes a failed CellResult. A trace that
// cannot be read throws TraceError.
void run_cells(const std::vector<Cell>& cells, const RunOptions& options);

// Returns the cells with their shares set where a budget is shared. Throws if a share cannot be found, unless
// continue_on_head_failure is set.
std::vector<Cell> with_budgets(std::vector<Cell> cells, const RunOptions& options);

// The part of a head stream that row formats read. Objects made from it refer to it.
template <class Real>
RowCoding::Stream coding_stream(const HeadStream<Real>& stream);

// What row formats need from one head stream, made once for all caches that use the format.
template <class Real>
class RowCodings {
 public:
  // Both are null for rows as the trace has them. format: the row format of the layer. Throws ConfigError if the cell's
  // file of uniforms cannot be read.
  struct Shared {
    std::shared_ptr<const RowCoding> coding;
    std::shared_ptr<CodedTokens<Real>> tokens;  // null: rows are not coded one by one
  };
  // shares: whether caches may share the rows that are read back.
  Shared of(const Cell& cell, const RowFormat& format, const HeadStream<Real>& stream, bool shares);

 private:
  std::map<std::tuple<std::string, uint32_t, std::string>, Shared> made_;
};

}  // namespace kvreplay
