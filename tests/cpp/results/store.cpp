#include <cmath>
#include <thread>

#include "base/errors.hpp"
#include "results/fixture.hpp"
#include "trace/h5_file.hpp"

using namespace results_test;

TEST_CASE("Cells published by one process are done for the next one") {
  const ScratchDir dir;
  publish_one(dir.path, 0);
  publish_one(dir.path, 1);
  const Store store(dir.path, {}, false);
  CHECK(store.folder().done() == std::unordered_set<std::string>{cell_of(0).key, cell_of(1).key});
  CHECK(store.folder().shards().unreadable_lines == 0);
}

TEST_CASE("A store that publishes nothing leaves no shard") {
  const ScratchDir dir;
  { const Store store(dir.path, {}, false); }
  CHECK(fs::is_empty(dir.path / "shards"));
}

TEST_CASE("A truncated last line is ignored and a corrupt line in the middle is counted") {
  const ScratchDir dir;
  publish_one(dir.path, 0);
  const fs::path shard = only_shard(dir.path);
  const std::string good = text_of(shard);
  publish_one(dir.path, 1);

  std::ofstream(shard, std::ios::app) << good.substr(0, good.size() - 1);  // complete except for its end
  CHECK(Store(dir.path, {}, false).folder().shards().unreadable_lines == 0);

  std::ofstream(shard) << good.substr(0, 30) << "\n"
                       << R"({"key": "../../x", "status": "ok", "row": {}})"
                       << "\n"
                       << good;
  const Store store(dir.path, {}, false);
  CHECK(store.folder().shards().unreadable_lines == 2);
  CHECK(store.folder().done().size() == 2);

  std::ofstream(shard) << good.substr(0, good.size() - 1);
  CHECK(Store(dir.path, {}, false).folder().done() == std::unordered_set<std::string>{cell_of(1).key});
}

TEST_CASE("Failed cells are in the table but not done, and success replaces failure") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  CHECK_FALSE(store.publish(cell_of(0), failure()));
  CHECK(store.folder().done().empty());
  const auto row = row_of(store, 0);
  CHECK(row[index_of("status")] == "failed");
  CHECK(row[index_of("error")] == "the denominator is zero at row 4");
  CHECK(row[index_of("peak_bytes")].empty());

  CHECK(store.publish(cell_of(0), result_of(0.5)));
  store.publish(cell_of(0), failure());
  CHECK(store.folder().done().size() == 1);
  CHECK(row_of(store, 0)[index_of("status")] == "ok");
  CHECK(Store(dir.path, {}, false).folder().done().size() == 1);
}

TEST_CASE("A cell is done only with the arrays that this run saves") {
  const ScratchDir dir;
  const SaveOptions kept{false, true, false}, both{true, true, false};
  publish_one(dir.path, 0, kept);
  publish_one(dir.path, 1);
  CHECK(Store(dir.path, {}, false).folder().done().size() == 2);
  CHECK(Store(dir.path, kept, false).folder().done() == std::unordered_set<std::string>{cell_of(0).key});
  CHECK(Store(dir.path, both, false).folder().done().empty());
  const fs::path arrays = fs::directory_iterator(dir.path / "cells")->path();
  fs::resize_file(arrays, fs::file_size(arrays) - 1);
  CHECK(Store(dir.path, kept, false).folder().done().empty());
}

TEST_CASE("Arrays of many cells are one file, and an altered file is reported by name") {
  const ScratchDir dir;
  const SaveOptions kept{false, true, false};
  {
    Store store(dir.path, kept, false);
    for (int i = 0; i < 5; ++i) store.publish(cell_of(i), result_of(0.5));
  }
  REQUIRE(files_in(dir.path / "cells").size() == 1);
  const fs::path arrays = fs::directory_iterator(dir.path / "cells")->path();
  std::string bytes = text_of(arrays);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(arrays, std::ios::binary) << bytes;
  Store store(dir.path, kept, false);
  CHECK_THROWS_WITH(store.finish(keys_of({cell_of(0), cell_of(1), cell_of(2), cell_of(3), cell_of(4)})),
                    Catch::Contains(arrays.filename().string()) && Catch::Contains("were changed or damaged"));
}

TEST_CASE("Forcing discards an earlier run and touches nothing else") {
  const ScratchDir dir;
  const SaveOptions kept{false, true, false};
  {
    Store store(dir.path, kept, false);
    store.publish(cell_of(0), result_of(0.5));
    store.finish(keys_of({cell_of(0)}));
  }
  for (const char* ours : {".results.csv~host.1.0", "cells/run.host.1.arrays"})
    std::ofstream(dir.path / ours) << "half";
  for (const char* theirs : {"notes.txt", "shards/notes.txt", "cells/notes.txt"})
    std::ofstream(dir.path / theirs) << "mine";
  const Store store(dir.path, kept, true);
  CHECK(store.folder().done().empty());
  for (const char* ours :
       {"results.csv", "results.meta.json", "kept.h5", ".results.csv~host.1.0", "cells/run.host.1.arrays"})
    CHECK_FALSE(fs::exists(dir.path / ours));
  for (const char* theirs : {"notes.txt", "shards/notes.txt", "cells/notes.txt"}) CHECK(fs::exists(dir.path / theirs));
}

TEST_CASE("Cells outside a plan are listed in the order of their shards") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  for (const int kv_head : {0, 1}) store.publish(cell_of(kv_head), result_of(0.5));
  CHECK(store.folder().others(keys_of({cell_of(0), cell_of(1), cell_of(2)})).empty());
  CHECK(store.folder().others(keys_of({cell_of(1)})) == keys_of({cell_of(0)}));
  CHECK(store.folder().others({}) == keys_of({cell_of(0), cell_of(1)}));
}

TEST_CASE("Two stores of one process write to one directory without harm") {
  const ScratchDir dir;
  {
    Store a(dir.path, {}, false), b(dir.path, {}, false);
    a.publish(cell_of(0), result_of(0.5));
    b.publish(cell_of(0), result_of(0.5));
    b.publish(cell_of(1), result_of(0.5));
    a.finish(keys_of({cell_of(0), cell_of(1)}));
    CHECK(lines_of(dir.path / "results.csv").size() == 3);  // cells published by the other store are in the table too
  }
  const Store store(dir.path, {}, false);
  CHECK(store.folder().done().size() == 2);
  CHECK(store.folder().shards().unreadable_lines == 0);
}

TEST_CASE("Threads publish at the same time") {
  const ScratchDir dir;
  Store store(dir.path, {false, true, false}, false);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 5; ++i) store.publish(cell_of(5 * t + i), result_of(0.5));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(Store(dir.path, {false, true, false}, false).folder().done().size() == 20);
}

TEST_CASE("A directory that cannot be written is refused with its name") {
  const ScratchDir dir;
  fs::create_directories(dir.path);
  std::ofstream(dir.path / "file") << "x";
  CHECK_THROWS_AS(Store(dir.path / "file", {}, false), OutputError);
  CHECK_THROWS_WITH(Store(dir.path / "file" / "out", {}, false), Catch::Contains((dir.path / "file").string()));
}

TEST_CASE("A directory that vanishes during the run is an output error") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  store.publish(cell_of(0), result_of(0.5));
  fs::remove_all(dir.path);
  CHECK_THROWS_AS(store.publish(cell_of(1), result_of(0.5)), OutputError);
  CHECK_THROWS_AS(store.finish(keys_of({cell_of(0)})), OutputError);
}

TEST_CASE("A full disk is an output error and damages no other cell") {
  const ScratchDir dir;
  {
    Store store(dir.path, {}, false);
    {
      const FullDisk full(100);
      CHECK_THROWS_AS(store.publish(cell_of(0), result_of(0.5)), OutputError);
    }
    store.publish(cell_of(1), result_of(0.5));
  }
  const Store store(dir.path, {}, false);
  CHECK(store.folder().done() == std::unordered_set<std::string>{cell_of(1).key});
  CHECK(store.folder().shards().unreadable_lines == 1);
}

TEST_CASE("A full disk leaves the old table whole and nothing half-written") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  store.publish(cell_of(0), result_of(0.5));
  store.finish(keys_of({cell_of(0)}));
  const std::string table = text_of(dir.path / "results.csv");
  store.publish(cell_of(1), result_of(0.5));
  const size_t files = files_in(dir.path).size();
  const FullDisk full(100);
  CHECK_THROWS_AS(store.finish(keys_of({cell_of(0), cell_of(1)})), OutputError);
  CHECK(text_of(dir.path / "results.csv") == table);
  CHECK(files_in(dir.path).size() == files);
}

TEST_CASE("Arrays that do not fit on the disk leave their cell undone") {
  const ScratchDir dir;
  Store store(dir.path, {false, false, true}, false);
  CellResult large = result_of(0.5);
  large.out.resize(size_t(large.heads) * large.rows.size() * 50000);
  large.v_dim = 50000;
  for (size_t i = 0; i < large.out.size(); ++i) large.out[i] = std::sin(double(i * i));
  {
    const FullDisk full(20000);
    CHECK_THROWS_AS(store.publish(cell_of(0), large), OutputError);
  }
  CHECK(store.folder().done().empty());
  store.publish(cell_of(0), large);
  CHECK(store.folder().done().size() == 1);
  store.finish(keys_of({cell_of(0)}));  // remains of the failed attempt do no harm
  CHECK(group_members(dir.path / "outputs.h5", "/") == std::vector<std::string>{cell_of(0).key});
}
