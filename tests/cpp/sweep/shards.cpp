#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "results/fixture.hpp"
#include "sweep/shard.hpp"
#include "sweep/slurm_script.hpp"

using namespace kvreplay;

namespace {

std::vector<SweepUnit> units_with(const std::vector<double>& costs) {
  std::vector<SweepUnit> units;
  for (const double cost : costs) units.push_back({{0, "p", 0, 0}, units.size(), 1, cost});
  return units;
}

// A plan of cells 0, 1, 2, ... (results/fixture.hpp), one per unit.
Manifest manifest_of(int cells) {
  Manifest m;
  for (int i = 0; i < cells; ++i) m.cells.push_back("{\"key\":\"" + results_test::cell_of(i).key + "\"}");
  m.units = units_with(std::vector<double>(size_t(cells), 5e10));
  return m;
}

}  // namespace

TEST_CASE("Shards are contiguous, complete, and of about equal cost") {
  CHECK(shards_of_units(units_with({1e3, 1e3, 1e3, 1e3}), 2) == std::vector<int32_t>{0, 0, 1, 1});
  CHECK(shards_of_units(units_with({9e3, 1e3, 1e3, 1e3}), 2) == std::vector<int32_t>{0, 1, 1, 1});
  CHECK(shards_of_units(units_with({1e3, 1e3}), 4) == std::vector<int32_t>{1, 3});
  CHECK(shards_of_units(units_with({0, 0}), 2) == std::vector<int32_t>{0, 1});
}

TEST_CASE("Every unit is in exactly one shard, whatever the number of shards") {
  std::vector<double> costs;
  for (int i = 0; i < 97; ++i) costs.push_back(1 + i * 37 % 101);
  const std::vector<SweepUnit> units = units_with(costs);
  for (const int32_t count : {1, 2, 7, 96, 97, 98, 1000}) {
    std::vector<size_t> all;
    for (int32_t i = 0; i < count; ++i)
      for (const size_t u : units_of(units, {i, count})) all.push_back(u);
    REQUIRE(all.size() == units.size());
    for (size_t u = 0; u < all.size(); ++u) CHECK(all[u] == u);
  }
}

TEST_CASE("The notation of a shard is i/N") {
  CHECK(parse_shard("3/20").index == 3);
  CHECK(parse_shard("3/20").count == 20);
  for (const char* wrong : {"", "3", "3/", "/3", "3/3", "-1/3", "0/0", "1/2/3", "a/b", "0/99999999999", "0 /2"})
    CHECK_THROWS_WITH(parse_shard(wrong), Catch::Contains("must be i/N"));
}

TEST_CASE("Ranges have the notation of job arrays") {
  CHECK(ranges_text({}).empty());
  CHECK(ranges_text({4}) == "4");
  CHECK(ranges_text({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
}

TEST_CASE("A status counts done, failed, parked and missing cells") {
  const results_test::ScratchDir dir;
  Store store(dir.path, {}, false, ProcessRecord{"0.1", "old", "", "", "", "", 0});
  store.publish(results_test::cell_of(0), results_test::result_of(0.5));
  store.publish(results_test::cell_of(1), results_test::failure());
  for (int i = 0; i < kMostAttempts; ++i) store.publish(results_test::cell_of(2), results_test::failure());
  const Manifest manifest = manifest_of(4);
  const SweepStatus status = status_of(manifest, ResultsFolder(dir.path, {}, "0.1 new"));
  CHECK(status.cells == 4);
  CHECK(status.ok == 1);
  CHECK(status.stale == 1);
  CHECK(status.failed == 1);
  CHECK(status.parked == 1);
  CHECK(status.missing == 1);
  CHECK(status.cost_left == 2 * 5e10);
  CHECK_FALSE(status.complete());
  CHECK(missing_shards(manifest, store.folder(), 4) == std::vector<int32_t>{1, 3});
  CHECK(missing_shards(manifest, store.folder(), 1) == std::vector<int32_t>{0});
}

TEST_CASE("A sweep is complete when every cell is done or has failed for good") {
  const results_test::ScratchDir dir;
  Store store(dir.path, {}, false);
  store.publish(results_test::cell_of(0), results_test::result_of(0.5));
  for (int i = 0; i < kMostAttempts; ++i) store.publish(results_test::cell_of(1), results_test::failure());
  CHECK(status_of(manifest_of(2), store.folder()).complete());
  CHECK(missing_shards(manifest_of(2), store.folder(), 2).empty());
}

TEST_CASE("A job array's script contains the job's settings") {
  SlurmJob job;
  job.name = "kvreplay-small", job.program = "/opt/kv replay/kvreplay", job.out = "/data/out";
  job.shards = 20, job.array = "0-3,7", job.at_once = 6, job.cpus = 8, job.memory_mb = 900, job.limit_s = 3600;
  job.stage = "$TMPDIR", job.directives = {"--partition=long"}, job.resubmit = "again";
  CHECK(slurm_array_script(job) ==
        "#!/bin/bash\n"
        "#SBATCH --job-name=kvreplay-small\n"
        "#SBATCH --array=0-3,7%6\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --cpus-per-task=8\n"
        "#SBATCH --time=01:00:00\n"
        "#SBATCH --signal=B:USR1@120\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --output=\"/data/out/slurm/%A_%a.log\"\n"
        "#SBATCH --mem=900M\n"
        "#SBATCH --partition=long\n"
        "exec '/opt/kv replay/kvreplay' sweep work /data/out --shard \"$SLURM_ARRAY_TASK_ID/20\" "
        "--time-budget 3480s -j 8 --stage \"$TMPDIR\" --progress plain\n");
  CHECK_THAT(slurm_merge_script(job), Catch::Contains("sweep merge /data/out\ncode=$?\n"
                                                      "[ $code -eq 75 ] && exec again\nexit $code\n"));
}

TEST_CASE("Odd names and paths are escaped for Slurm, or refused") {
  SlurmJob job;
  job.name = "kvreplay-a b'c\n#d", job.out = "/data/50% done";
  CHECK_THAT(slurm_array_script(job), Catch::Contains("--job-name=kvreplay-a_b_c__d\n") &&
                                          Catch::Contains("--output=\"/data/50%% done/slurm/%A_%a.log\"\n") &&
                                          Catch::Contains("sweep work '/data/50% done' --shard"));
  CHECK(slurm_problem(job).empty());
  job.directives = {"--gres=gpu:1", "--partition=long"};
  CHECK_THAT(slurm_merge_script(job), !Catch::Contains("gres") && Catch::Contains("--partition=long"));
  for (const char* odd : {"/a\"b", "/a\nb", "/a\\b"}) {
    job.out = odd;
    CHECK_THAT(slurm_problem(job), Catch::Contains("cannot hold quotes"));
  }
}

TEST_CASE("A short job is warned after three quarters of its time") {
  SlurmJob job;
  job.limit_s = 60;
  CHECK_THAT(slurm_array_script(job), Catch::Contains("--time=00:01:00") && Catch::Contains("B:USR1@15\n") &&
                                          Catch::Contains("--time-budget 45s"));
}
