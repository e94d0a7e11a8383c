#pragma once
#include <vector>

#include "calibration/known_queries.hpp"
#include "catalog/bound_method.hpp"
#include "core/cache.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// Shows a one-shot scorer the text so far whenever a cut is due: after a chunk of the prompt, or after some decode
// steps (core/serving.hpp). The scorer reads it as it reads a prompt. Attention of the rows that vote is computed anew,
// over the tokens that are held now.
template <class Real>
class CutReading {
 public:
  CutReading(const HeadStream<Real>& stream, const BoundMethod& method, int32_t first_head, Aggregate how);
  // Whether the method reads the text at cuts.
  bool any() const { return any_; }
  // Numbers of the queries that its next cut needs once `seen` tokens are: those of the rows that vote, or the mean and
  // second moments of all.
  int64_t query_floats(int32_t seen) const;
  // If a cut is due and the text has grown since the last call. calls: the hooks of the method.
  template <class Calls>
  void read(const Calls& calls, const CacheStorage<Real>& held, BasicCache<Real>& cache) {
    if (!any_ || cache.size() == 0 || !is_due(cache.token(cache.size() - 1))) return;
    const typename Prompt<Real>::View view = look(held, cache);
    calls.read_prompt(SerialTeam{}, Prompt<Real>(view), cache);
  }
  // The method has read the text up to here in another way.
  void skip(int32_t tokens) { seen_ = tokens; }
  // Another method decides from now on.
  void follow(const BoundMethod& method);

 private:
  bool is_due(int32_t newest) const { return newest >= seen_ && plan_.is_due(newest); }
  typename Prompt<Real>::View look(const CacheStorage<Real>& held, const BasicCache<Real>& cache);
  void vote(int32_t row, const PromptNeeds& needs, const BasicCache<Real>& cache);
  void attend(int32_t head, int32_t row, int32_t rows, const BasicCache<Real>& cache);
  void add_row(const PromptNeeds& needs, const BasicCache<Real>& cache, int32_t rows);
  void find_output(const double* p, int32_t rows, int32_t block, const BasicCache<Real>& cache);
  void copy_rows(const BasicCache<Real>& cache, typename Prompt<Real>::View& view);

  const HeadStream<Real>& stream_;
  const BoundMethod* method_;
  int32_t first_head_, heads_;
  Aggregate how_;
  CutPlan plan_;
  bool any_ = false;
  int32_t seen_ = 0;                                   // tokens of the text when it was last read
  std::vector<double> sums_, max_sums_, row_, dense_;  // [heads, seen], [seen], [heads, rows held], [heads, seen]
  std::vector<double> logits_, output_;                // [heads, rows held], of one head
  std::vector<Real> keys_, values_;                    // rows that are not as recorded
  KnownQueries known_;
};

}  // namespace kvreplay
