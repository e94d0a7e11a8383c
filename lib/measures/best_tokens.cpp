#include <string>
#include <utility>

#include "measures/measure.hpp"
#include "measures/sums.hpp"

// What a cell attends to from row to row, and how much of it are the best k tokens (docs/measures.md, working sets).

namespace kvreplay {
namespace {

class BestTokens final : public Measure {
 public:
  explicit BestTokens(const MeasureShape& shape)
      : shape_(shape), before_(size_t(shape.heads)), recalls_(shape.recall_k.size()) {}

  void add(const MeasuredRow& r) override {
    if (shape_.wanted.has(Work::reads)) add_overlap(r);
    for (size_t i = 0; i < r.recalls.size(); ++i) {
      Recall& of_k = recalls_[i];
      of_k.row.add(r.recalls[i]);
      if (shape_.heads_differ) of_k.end_row();
    }
  }
  // Heads that read one set share the ranking of their mean probability: one value per row.
  void end_row() override {
    for (Recall& of_k : recalls_) of_k.end_row();
  }
  void open_segment() override { before_.assign(before_.size(), {}); }

  void finish(Measured& to, const ErrorBound&) override {
    to["overlap_mean"] = overlap_.mean();
    for (size_t i = 0; i < recalls_.size(); ++i) {
      const auto hits = recalls_[i].hits.mean(), mass = recalls_[i].mass.mean();
      if (i == 0) to["recall_at_k"] = hits, to["mass_recall_at_k"] = mass;
      const std::string k = std::to_string(shape_.recall_k[i]);
      if (i > 0 && hits) to.extras["recall_at_" + k] = *hits;
      if (i > 0 && mass) to.extras["mass_recall_at_" + k] = *mass;
    }
  }

 private:
  struct Before {
    int32_t token = -2, attended = 0;
  };
  struct Recall {
    struct {
      double hits = 0, mass = 0, most = 0;
      int32_t heads = 0;
      void add(const RecallAt& r) {
        if (r.hits == kUnset) return;
        hits += r.hits, mass += r.mass, most += r.most;
        ++heads;
      }
    } row;
    Sums hits, mass;
    void end_row() {
      if (row.heads > 0) hits.add(row.hits / row.heads);
      if (row.most > 0) mass.add(row.mass / row.most);
      row = {};
    }
  };

  void add_overlap(const MeasuredRow& r) {
    const Before before = std::exchange(before_[size_t(r.head)], {r.exact.token, r.row.attended});
    if (before.token + 1 != r.exact.token) return;
    const int32_t either = before.attended + r.row.attended - r.row.repeated;
    overlap_.add(either > 0 ? double(r.row.repeated) / either : 1);
  }

  MeasureShape shape_;
  std::vector<Before> before_;   // [heads] the row before
  std::vector<Recall> recalls_;  // for each k
  Sums overlap_;
};

}  // namespace

std::unique_ptr<Measure> best_tokens(const MeasureShape& shape) { return std::make_unique<BestTokens>(shape); }

}  // namespace kvreplay
