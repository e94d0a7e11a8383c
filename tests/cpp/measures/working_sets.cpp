#include "measures/measured_rows.hpp"
#include "measures/working_set.hpp"

// Reads of a group, and a hot tier, by hand.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using List = std::vector<int32_t>;

StepReads reads_of(const List& read, const List& scan = {}) {
  StepReads reads;
  reads.tokens = int32_t(read.size()), reads.scanned = int32_t(scan.size());
  reads.read = read, reads.scan = scan;
  return reads;
}

WorkingSetShape shape_of(int32_t caches, bool chooses) {
  return {.tokens = 8,
          .prompt = 2,
          .caches = caches,
          .blocks = 1,
          .chooses = chooses,
          .own_index = false,
          .evicts_first = false,
          .stored_bytes = 2,
          .row_floats = 3};
}

Measured after(const WorkingSet& set) {
  Measured m;
  set.finish(m);
  return m;
}

}  // namespace

// Held are 0 and 1, then 0 and 2. Step 3 uses 1, 2 and 3, and the two lowest stay.
TEST_CASE("A tier of two tokens keeps those that were used last", "[measures]") {
  WorkingSet set(shape_of(1, true), {.policy = TierOptions::Policy::lru, .hot = 2});
  set.add(2, reads_of({0, 2}), {});
  set.add(3, reads_of({1, 2, 3}), {});
  Measured m = after(set);
  CHECK(*m["tier_hit_rate"] == Approx(2 / 3.0));
  CHECK(*m["tier_swap_tokens_per_step"] == 0.5);
  CHECK(*m["tier_swap_bytes_per_step"] == 0.5 * 3 * 2);
  set.add(4, reads_of({1, 2, 3}), {});
  m = after(set);
  CHECK(*m["tier_hit_rate"] == Approx(4 / 6.0));
  CHECK(*m["tier_swap_tokens_peak"] == 1);
}

TEST_CASE("A tier by scores adds them up over the heads", "[measures]") {
  WorkingSet set(shape_of(2, true), {.policy = TierOptions::Policy::method, .hot = 1});
  const auto scored = [](const List& read, const std::vector<double>& scores) {
    StepReads reads = reads_of(read);
    reads.held = {0, 1, 2}, reads.scores = scores;
    return reads;
  };
  set.add(2, scored({0}, {3, 2, 0}), {});
  set.add(2, scored({1}, {0, 2, 0}), {});  // sums 3, 4 and 0
  set.add(3, scored({1}, {0, 0, 0}), {});
  set.add(3, scored({0}, {0, 0, 0}), {});
  const Measured m = after(set);
  CHECK(*m["tier_hit_rate"] == Approx(2 / 4.0));  // token 1 twice: of the prompt's end, and by its score
}

TEST_CASE("A row that two heads fetch is read once, and so is an index that they share", "[measures]") {
  WorkingSet set(shape_of(2, true), {});
  StepReads first = reads_of({0, 1}, {4}), second = reads_of({1, 2}, {0, 4, 5});
  for (StepReads* reads : {&first, &second}) {
    reads->index.sketch_floats = 10, reads->index.aux_bytes = 7;
    reads->index.aux_bytes_per_scan = 100, reads->index.sketch_floats_per_row = -1;
  }
  set.add(5, first, {});
  CHECK_FALSE(after(set)["kv_read_bytes_per_step"].has_value());
  set.add(5, second, {});
  const Measured m = after(set);
  CHECK(*m["kv_read_bytes_per_step"] == 3 * 3 * 2);
  CHECK(*m["index_read_bytes_per_step"] == 10 * 2 + 7 - 3 * 2 + 5 * 100);  // 0, 1, 2, 4 and 5 are read or scanned
}

TEST_CASE("A step reads weights and caches, and waits for what is swapped", "[measures]") {
  Measured m;
  m["kv_read_bytes_per_step"] = 90'000.0, m["index_read_bytes_per_step"] = 10'000.0, m["index_stored_bytes"] = 1e6;
  m["tier_swap_bytes_per_step"] = 2000.0;
  MachineOptions machine{.hbm_bytes = 80e9, .hbm_bw = 3.35e12, .link_bw = 1e8, .weights_bytes = 16e9};
  measure_machine(machine, 256, 1000, 500, m);
  CHECK(1 / *m["model_tokens_per_s"] == Approx(256 * 2000 / 1e8));  // 5.12 ms; the memory takes 4.784 ms
  CHECK(*m["model_max_batch"] == std::floor((72e9 - 16e9) / (256 * (1000 * 500 + 1e6))));
  machine.overlap = false;
  measure_machine(machine, 256, 1000, 500, m);
  CHECK(1 / *m["model_tokens_per_s"] == Approx(256 * 2000 / 1e8 + (16e9 + 256 * 1e5) / 3.35e12));
  machine.weights_bytes = 80e9;
  measure_machine(machine, 256, 1000, 500, m);
  CHECK(*m["model_max_batch"] == 0);
}
