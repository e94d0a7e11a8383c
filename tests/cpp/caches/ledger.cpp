#include <catch2/catch.hpp>

#include "caches/ledger.hpp"

using namespace kvreplay;

// Three tokens of 4 + 4 numbers at 4 bytes, with positions, scores and 10 bytes of marks.
TEST_CASE("a step like the last one is charged as that one", "[caches]") {
  LedgerKeeper keeper;
  const Payload three{12, 12, 96}, four{16, 16, 128};
  LedgerKeeper::Kept kept{};
  kept.rows = 3, kept.blocks = 1, kept.payload = three, kept.positions = true, kept.scores = 1;
  ExtraBytes marks;
  marks.mark_bytes = 10;
  const int64_t aux = 3 * 4 + 3 * 8 + 10;
  keeper.attended(4, four, true), keeper.kept(kept, marks);
  const Ledger& ledger = keeper.ledger;
  CHECK(ledger.read_sum == 128);
  CHECK(ledger.bytes_sum == 96 + aux);
  for (int64_t step = 2; step <= 3; ++step) {
    keeper.attended_again(), keeper.kept_again(step);
    CHECK(ledger.evictions == step);
    CHECK(ledger.kept_sum == 3 * step);
    CHECK(ledger.kept_steps == step);
    CHECK(ledger.bytes_sum == step * (96 + aux));
    CHECK(ledger.aux_sum == step * aux);
    CHECK(ledger.read_sum == step * 128);
    CHECK(ledger.read_steps == step);
    CHECK(ledger.peak_bytes == 128);
    CHECK(ledger.final_bytes == 96 + aux);
  }
}
